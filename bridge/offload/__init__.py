"""Offloaded namespaces: new pods may, or must, run on virtual nodes without being edited.

- `namespace_offloading` implements `bridge offload` and `unoffload`; `pod_mutator_setup` installs,
  finds and tests the mechanism that mutates pods in home.
- The mechanism is the `mutating_admission_policy` (CEL, run by the API server), or else a webhook
  that the `webhook_configuration` registers: `webhook_server` answers its requests, either in a
  `standalone_webhook` process or behind a Service (`in_cluster_webhook`, with the certificate of
  `webhook_certificate`).

`translators.offload_admission_patch` defines how a pod is mutated.
"""

from __future__ import annotations

from typing import Literal

#: The mechanism that mutates the pods; auto is the policy if home serves it, or else a webhook.
Mechanism = Literal["auto", "policy", "webhook"]
