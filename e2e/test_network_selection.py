"""`--network auto`: the mode is probed, recorded on the Node, and kept by later starts."""

from __future__ import annotations

import json

import pytest

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import get_one
from e2e.workload_manifests import AGNHOST

pytestmark = pytest.mark.core

#: A pod of the remote that is not the bridge's, and that accepts connections.
_LISTENER = f"""
apiVersion: v1
kind: Pod
metadata: {{name: listener}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: server
      image: {AGNHOST}
      args: [netexec, --http-port=8080]
      ports: [{{containerPort: 8080}}]
"""


def _restart(bridged: Bridged, expected: str) -> None:
    assert bridged.bridge.stop() == 0
    bridged.bridge.start()
    bridged.bridge.wait_for_log(f"both: pod networks: {expected}")


@pytest.mark.join("--network=auto")
def test_auto_probes_until_the_result_is_clear_and_keeps_it(
    bridged: Bridged, home: Cluster, remote: Cluster
) -> None:
    namespace = f"listens-{bridged.node}"
    remote.kubectl("create", "namespace", namespace)
    try:
        remote.kubectl("apply", "-n", namespace, "-f", "-", input=_LISTENER)
        remote.kubectl(
            *("wait", "-n", namespace, "--for=condition=Ready", "pod/listener", "--timeout=120s")
        )
        # The fixture's start may have found no pod to dial.
        _restart(bridged, "flat (probed: ")
    finally:
        remote.kubectl("delete", "namespace", namespace, "--wait=false")
    _restart(bridged, "flat (probed: recorded on the Node)")
    node = get_one(home, "node", bridged.node)
    record = json.loads(node["metadata"]["annotations"]["cluster-bridge.io/options"])
    assert (record["network"], record["networkSource"]) == ("flat", "probed")
    shown = bridge_process.run("status", bridged.node, "-o", "json", home=home)
    [status] = json.loads(shown.stdout)["nodes"]
    assert status["network"] == {"mode": "flat", "source": "probed"}
