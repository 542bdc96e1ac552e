"""`bridge leave` while a bridge still creates pods, and beside another virtual node of the home."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import bridge_process
from e2e.conftest import Bridged, Limited, second_node
from e2e.kubectl import get, get_one, uids, wait_for
from e2e.workload_manifests import BUSYBOX, busybox

#: A pod with the environment of a ConfigMap.
USING = f"""
apiVersion: v1
kind: Pod
metadata: {{name: NAME}}
spec:
  nodeSelector: {{kubernetes.io/hostname: THE-NODE}}
  tolerations: [{{key: cluster-bridge.io/virtual-node, operator: Exists}}]
  terminationGracePeriodSeconds: 2
  containers:
    - name: main
      image: {BUSYBOX}
      command: [sh, -c, "sleep 3600"]
      envFrom: [{{configMapRef: {{name: shared}}}}]
"""


def _using(node: str, name: str) -> str:
    return USING.replace("THE-NODE", node).replace("NAME", name)


class ConfirmedLeave:
    """`bridge leave` in a terminal, which asks for confirmation."""

    def __init__(self, bridged: Bridged, log: Path, *args: str) -> None:
        self._log = log
        terminal, theirs = pty.openpty()
        self._terminal = terminal
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [bridge_process.BRIDGE, "leave", bridged.node, *args],
                env={**os.environ, "KUBECONFIG": str(bridged.bridge.home.kubeconfig)},
                stdin=theirs,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        os.close(theirs)

    @property
    def output(self) -> str:
        """The output so far."""
        return self._log.read_text()

    def answer(self, text: str) -> int:
        """Types the answer and waits for the end; the exit status."""
        os.write(self._terminal, text.encode() + b"\n")
        return self._process.wait(120)

    def close(self) -> None:
        """Kills it if it still runs."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


def test_leave_removes_pods_created_during_the_confirmation(
    bridged: Bridged, tmp_path: Path
) -> None:
    bridged.apply(busybox(bridged.node, "early", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/early", "--timeout=60s")
    leaving = ConfirmedLeave(bridged, tmp_path / "leave.log", "--force")
    try:
        wait_for(lambda: "Remove all this?" in leaving.output, "it asks")
        bridged.apply(busybox(bridged.node, "late", "sleep 3600"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/late", "--timeout=60s")
        assert leaving.answer("y") == 0, leaving.output
    finally:
        leaving.close()
    late = f"Pod {bridged.remote_namespace}/late"
    assert f"remote: {late} was created after the confirmation; removing it" in leaving.output
    assert not bridged.home_pods()
    wait_for(
        lambda: bridged.remote_namespace not in uids(get(bridged.remote, "namespaces")),
        "nothing is left",
    )


@pytest.fixture
def other(bridged: Bridged, limited: Limited, tmp_path: Path) -> Iterator[str]:
    """Another virtual node of the same home in the same remote, with the same namespaces."""
    name = f"{bridged.node}-b"
    with second_node(bridged, limited, name, tmp_path):
        yield name


def test_leave_keeps_objects_that_another_virtual_node_uses(bridged: Bridged, other: str) -> None:
    bridged.kubectl("create", "configmap", "shared", "--from-literal=a=b")
    bridged.apply(_using(bridged.node, "mine"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/mine", "--timeout=60s")
    bridged.apply(_using(other, "theirs"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/theirs", "--timeout=60s")
    namespace = bridged.remote_namespace
    before = uids(bridged.remote_pods())["theirs"]

    assert bridged.bridge.stop() == 0
    left = bridge_process.run("leave", bridged.node, "--yes", home=bridged.bridge.home)
    assert left.returncode == 0, left.stderr
    reason = f"remote: ConfigMap {namespace}/shared stays: pods of virtual node {other} use it"
    assert reason in left.stderr
    assert f"namespace {namespace} stays: virtual node(s) {other} use it" in left.stderr
    assert uids(bridged.remote_pods()) == {"theirs": before}

    # The copy now belongs to the other node, which keeps it up to date.
    patch = '{"data":{"a":"c"}}'
    bridged.kubectl("patch", "configmap", "shared", "--type=merge", "-p", patch)
    wait_for(
        lambda: (
            get_one(bridged.remote, "configmap", "shared", namespace=namespace)["data"]
            == {"a": "c"}
        ),
        "the copy follows",
    )
    home = _home_of(bridged)
    args = ("--remove", home, "--node", bridged.node, "--yes")
    pruned = bridge_process.run("prune", "--kubeconfig", bridged.remote.kubeconfig, *args)
    assert pruned.returncode == 0, pruned.stderr
    assert uids(bridged.remote_pods()) == {"theirs": before}
    assert get_one(bridged.remote, "configmap", "shared", namespace=namespace)


def _home_of(bridged: Bridged) -> str:
    (pod,) = bridged.remote_pods()
    return str(pod["metadata"]["labels"]["cluster-bridge.io/home"])
