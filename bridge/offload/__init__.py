"""Namespaces whose pods may, or must, go to virtual nodes without being edited.

`policy` is the objects by which an API server does that itself, `server` what does it where it
cannot: by hand (`webhook`) or in home's cluster (`shared`, with the certificate of `rotation`).
`commands` is what `bridge offload` and `bridge unoffload` do, `listing` what there is. What is done
to a pod is `translators.offload_patch`'s.
"""

from __future__ import annotations

from typing import Literal

#: Who changes the pods: what the API server can do itself, or else a webhook.
Mechanism = Literal["auto", "policy", "webhook"]
