"""Namespaces whose pods may, or must, go to virtual nodes without being edited.

`policy` is the objects by which an API server does that itself, `webhook` a server that does it
where it cannot, `commands` what `bridge offload` and `bridge unoffload` do. What is done to a pod
is `translators.offload`'s.
"""

from __future__ import annotations

from typing import Literal

#: Who changes the pods: what the API server can do itself, or else a webhook.
Way = Literal["auto", "policy", "webhook"]
