"""Makes each stream traceable in the remote's audit log, and in the log of the bridge.

To the remote, all streams are the bridge's. Each of its requests therefore has two headers that the
audit log shows at every level, and that need no permission there:

- ``Audit-ID``: a random UUID, which an API server adopts as the request's ``auditID``.
- ``User-Agent``, in the log ``userAgent``: the home pod, its virtual node, and the SHA-256 of the
  caller's name. The name itself stays at home.

The bridge logs the UUID with the caller's name. The caller is who called the kubelet API: for
kubectl this is home's API server, which does not pass the person on
(docs/reference/kubelet-api.md shows how home's audit log completes the trail).

Only characters of names are sent, and at most `MAX_USER_AGENT` of them: audit logs truncate beyond
1024 (k8s.io/apiserver/pkg/audit/request.go).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import uuid

from bridge.base.version import version
from bridge.kubelet.pod_lookup import PodAccess, RemotePod
from bridge.kubelet.routing import RoutedRequest
from sync.runtime.log_fields import name_fields

MAX_USER_AGENT = 1000

#: Its lines are always shown (`bridge.observability.log_output`).
log = logging.getLogger("cluster-bridge.audit")


def audit_headers(
    access: PodAccess, kind: str, routed: RoutedRequest, pod: RemotePod
) -> dict[str, str]:
    """Logs a stream of a caller, and returns the headers of its request to the remote."""
    audit_id = str(uuid.uuid4())
    namespace, name = routed.parameters["namespace"], routed.parameters["pod"]
    home_pod = f"{namespace}/{name}"
    log.info(
        "pod %s: %s by %s; audit ID in the remote: %s",
        home_pod,
        kind,
        routed.user.name,
        audit_id,
        extra=name_fields("Pod", name, namespace=namespace, uid=pod.home_uid, cluster="home"),
    )
    caller = hashlib.sha256(routed.user.name.encode("utf-8", "surrogateescape")).hexdigest()
    fields = {
        "node": access.node,
        "pod": home_pod,
        "uid": pod.home_uid,
        "caller": f"sha256:{caller}",
    }
    comment = "; ".join([kind, *(f"{key}={_safe(value)}" for key, value in fields.items())])
    return {"User-Agent": f"{_product()} ({comment})"[:MAX_USER_AGENT], "Audit-ID": audit_id}


def _safe(value: str) -> str:
    """The value with other characters than those of names replaced: a comment in a header ends at a
    parenthesis, a header at a line break."""
    return re.sub(r"[^A-Za-z0-9._/:-]", "_", value)


@functools.cache
def _product() -> str:
    return f"cluster-bridge/{_safe(version())}"
