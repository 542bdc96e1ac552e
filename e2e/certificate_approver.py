"""Approves the node certificates that bridges request, as an administrator of home.

A bridge with the permissions that `bridge rbac home` prints cannot approve its own request.
Requests for serving certificates are left to the tests, and those of bootstrap tokens to home.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from e2e import api_reader
from e2e.clusters.cluster import Cluster
from e2e.clusters.errors import ClusterError

SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
#: The start of the names of bootstrap tokens' users.
_BOOTSTRAP = "system:bootstrap:"
#: Seconds between two looks.
_PERIOD = 0.25


@contextmanager
def approving(home: Cluster) -> Iterator[None]:
    """Approves requests while the block runs, also after outages of home."""
    stop = threading.Event()
    thread = threading.Thread(target=_approve_until, args=(home, stop), name="approver")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _approve_until(home: Cluster, stop: threading.Event) -> None:
    while not stop.wait(_PERIOD):
        try:
            for request in api_reader.list_objects(home, "certificatesigningrequests"):
                spec, is_pending = request["spec"], not request["status"].get("conditions")
                is_for_home = spec["username"].startswith(_BOOTSTRAP)
                if spec["signerName"] == SIGNER and is_pending and not is_for_home:
                    home.kubectl("certificate", "approve", request["metadata"]["name"])
        except ClusterError:
            continue  # A test has stopped home's API server, or removed the request.
