"""A Deployment bursts into the remote and behaves at home like any other."""

from __future__ import annotations

import json
import subprocess
import urllib.request

import pytest

from bridge.base.join_settings import NAMESPACE_LINGER
from e2e.conftest import Bridged
from e2e.kubectl import PATIENCE, get, get_one, is_ready, made_by_bridge, uids, wait_for
from e2e.unmanaged_objects import unmanaged_requests
from e2e.workload_manifests import busybox, web
from translators import quantity

pytestmark = pytest.mark.core

#: Seconds until a kubelet that syncs every 10 s has refreshed a volume, with a margin.
VOLUME_SECONDS = 100.0


def test_deployment_with_its_config_bursts_and_follows(bridged: Bridged) -> None:
    """Deployment, ConfigMap, Secret and Service; an edit; and scaling to zero."""
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")

    pods = bridged.home_pods()
    assert len(pods) == 3
    assert all(pod["spec"]["nodeName"] == bridged.node and is_ready(pod) for pod in pods)
    theirs = {pod["metadata"]["name"]: pod for pod in bridged.remote_pods()}
    for pod in pods:
        remote = theirs[pod["metadata"]["name"]]
        assert pod["status"]["podIP"] == remote["status"]["podIP"]
        assert (
            remote["metadata"]["annotations"]["cluster-bridge.io/home-uid"]
            == (pod["metadata"]["uid"])
        )
    assert pods[0]["status"]["hostIP"] == bridged.home.host_address

    _sees_home(bridged, pods[0]["metadata"]["uid"], pods[0]["metadata"]["name"])
    _service_reaches(bridged, {pod["status"]["podIP"] for pod in pods})
    _edit_arrives(bridged)

    bridged.kubectl("scale", "deployment/web", "--replicas=0")
    wait_for(lambda: not bridged.remote_pods(), "the remote pods were deleted")
    wait_for(lambda: not bridged.home_pods(), "the home pods were deleted")
    kinds = "configmaps,secrets,services"
    wait_for(
        lambda: (
            not get(
                bridged.remote,
                kinds,
                namespace=bridged.remote_namespace,
                selector=f"cluster-bridge.io/node={bridged.node}",
            )
        ),
        "the copies of referenced objects were deleted",
        seconds=NAMESPACE_LINGER + PATIENCE,
    )


def _sees_home(bridged: Bridged, uid: str, name: str) -> None:
    """Environment and files have home's values, identity included."""
    script = (
        "echo $GREETING $NAMESPACE $NODE; cat /config/GREETING /secret/password "
        "/projected/greeting /projected/password /pod/uid"
    )
    output = bridged.kubectl("exec", name, "--", "sh", "-c", script)
    expected = f"hello {bridged.namespace} {bridged.node}\n"
    assert output == f"{expected}hellocorrect-horsehellocorrect-horse{uid}"


def _service_reaches(bridged: Bridged, addresses: set[str]) -> None:
    """The Service exists on both sides, with the remote pods as its endpoints."""

    def endpoints() -> set[str]:
        label = "kubernetes.io/service-name=web"
        slices = get(bridged.home, "endpointslices", namespace=bridged.namespace, selector=label)
        return {
            address
            for found in slices
            for endpoint in found["endpoints"] or ()
            if endpoint["conditions"]["ready"]
            for address in endpoint["addresses"]
        }

    wait_for(lambda: endpoints() == addresses, "home's endpoints are the remote pods")
    vip = get_one(bridged.remote, "service", "web", namespace=bridged.remote_namespace)
    target = f"{vip['spec']['clusterIP']}:80"
    connect = ("exec", "deployment/web", "--", "/agnhost", "connect", "--timeout=5s", target)
    wait_for(
        lambda: (
            bridged.home.kubectl("-n", bridged.namespace, *connect, check=False).returncode == 0
        ),
        "the Service's address in the remote leads to its pods",
    )
    home_vip = get_one(bridged.home, "service", "web", namespace=bridged.namespace)
    assert home_vip["spec"]["clusterIP"] != vip["spec"]["clusterIP"]


def _edit_arrives(bridged: Bridged) -> None:
    patch = json.dumps({"data": {"GREETING": "changed"}})
    bridged.kubectl("patch", "configmap", "web", "-p", patch)
    wait_for(
        lambda: (
            bridged.kubectl("exec", "deployment/web", "--", "cat", "/config/GREETING") == "changed"
        ),
        "the edit is in the volume",
        seconds=VOLUME_SECONDS,
    )


def test_logs_follow_previous_tail_and_since(bridged: Bridged) -> None:
    """`kubectl logs` with its options, through home's API server."""
    script = "echo one; echo two; echo three; exit 3"
    bridged.apply(busybox(bridged.node, "crashing", script))
    bridged.apply(
        busybox(
            bridged.node, "counting", "for i in 1 2 3 4 5 6; do echo $i; sleep 1; done; sleep 3600"
        )
    )
    wait_for(
        lambda: any(
            status["restartCount"] > 0 and status["state"].get("waiting")
            for pod in bridged.home_pods()
            for status in pod["status"].get("containerStatuses", ())
        ),
        "the crashing container was started again, ended again, and home knows",
    )

    def previous(*options: str) -> list[str]:
        return bridged.kubectl("logs", "crashing", "--previous", *options).split()

    # A kubelet may have removed the current container: the next one is kept.
    whole = ["one", "two", "three"]
    wait_for(lambda: previous() == whole, "the log of the container before")
    wait_for(lambda: previous("--tail=1") == ["three"], "its last line")
    wait_for(lambda: previous("--since=1h") == whole, "the log of the last hour is complete")

    followed = _first_lines(bridged, 5, "logs", "-f", "counting", "--timestamps")
    assert [line.split()[-1] for line in followed] == ["1", "2", "3", "4", "5"]

    wrong = bridged.home.kubectl(
        "-n", bridged.namespace, "logs", "counting", "-c", "nope", check=False
    )
    assert wrong.returncode != 0
    assert "nope" in wrong.stderr


def test_exec_has_exit_codes_stdin_and_stderr(bridged: Bridged) -> None:
    """`kubectl exec` with both protocols: input and output are exact."""
    bridged.apply(busybox(bridged.node, "shell", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/shell", "--timeout=60s")
    for websockets in ("true", "false"):
        env = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": websockets}
        failed = _exec(bridged, "sh", "-c", "echo out; echo err >&2; exit 42", env=env)
        assert (failed.returncode, failed.stdout, failed.stderr.splitlines()[0]) == (
            42,
            b"out\n",
            b"err",
        )
        data = bytes(range(256)) * 4096
        copied = _exec(bridged, "cat", env=env, stdin=data, flags=("-i",))
        assert (copied.returncode, copied.stdout == data) == (0, True)


def test_exec_with_a_terminal_has_its_size(bridged: Bridged) -> None:
    """`kubectl exec -it`: the container's terminal has the size of the user's."""
    bridged.apply(busybox(bridged.node, "shell", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/shell", "--timeout=60s")
    kubectl = f"{bridged.home.kubectl_path} --kubeconfig={bridged.home.kubeconfig}"
    inside = f"{kubectl} -n {bridged.namespace} exec -it shell -- sh -c 'sleep 1; stty size; tty'"
    done = subprocess.run(
        ["script", "-qec", f"stty rows 33 cols 77; {inside}", "/dev/null"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "33 77" in done.stdout
    assert "/dev/pts/" in done.stdout


def test_port_forward_and_attach_work(bridged: Bridged) -> None:
    """Attach and port-forward."""
    serve = "echo served through the tunnel >/tmp/index.html; httpd -p 8080 -h /tmp; "
    bridged.apply(
        busybox(bridged.node, "talking", serve + "while true; do echo tick; sleep 1; done")
    )
    bridged.kubectl("wait", "--for=condition=Ready", "pod/talking", "--timeout=60s")
    assert _first_lines(bridged, 2, "attach", "talking") == ["tick", "tick"]
    url = _forwarded(bridged)
    assert url == "served through the tunnel"


def test_deletion_is_graceful_and_a_recreated_pod_is_another(bridged: Bridged) -> None:
    """A pod ends in the remote before it is deleted at home; its successor has a new remote pod."""
    script = "trap 'sleep 1; exit 7' TERM; while true; do sleep 0.1; done"
    bridged.apply(busybox(bridged.node, "polite", script))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/polite", "--timeout=60s")
    before = uids(bridged.remote_pods())["polite"]
    bridged.kubectl("delete", "pod", "polite", "--grace-period=10", "--wait=false")
    assert bridged.home_pods(), "it stays at home while it ends in the remote"
    wait_for(lambda: not bridged.home_pods(), "the home pod was deleted")
    assert not bridged.remote_pods(), "it was gone in the remote first"
    bridged.apply(busybox(bridged.node, "polite", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/polite", "--timeout=60s")
    assert uids(bridged.remote_pods())["polite"] != before


def test_node_has_the_fields_of_a_node_and_the_remotes_capacity(bridged: Bridged) -> None:
    """Labels, taint, Lease, conditions, and capacity that follows the remote's nodes."""
    node = get_one(bridged.home, "node", bridged.node)
    assert {"key": "cluster-bridge.io/virtual-node", "value": "true", "effect": "NoSchedule"} in (
        node["spec"]["taints"]
    )
    conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert conditions["MemoryPressure"] == conditions["NetworkUnavailable"] == "False"
    lease = get_one(bridged.home, "lease", bridged.node, namespace="kube-node-lease")
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    written = made_by_bridge(bridged.home)
    assert {node["metadata"]["uid"], lease["metadata"]["uid"]} <= written
    theirs = get(bridged.remote, "nodes")[0]
    offered = quantity.parse_quantity(node["status"]["allocatable"]["cpu"])
    whole = quantity.parse_quantity(theirs["status"]["allocatable"]["cpu"])
    assert offered == whole - unmanaged_requests(bridged, "cpu")
    name = theirs["metadata"]["name"]
    bridged.remote.kubectl("cordon", name)
    try:
        wait_for(
            lambda: "cpu" not in _allocatable(bridged),
            "a cordoned node counts no more",
        )
    finally:
        bridged.remote.kubectl("uncordon", name)
    wait_for(lambda: "cpu" in _allocatable(bridged), "it counts again")


def _allocatable(bridged: Bridged) -> dict[str, str]:
    node = get_one(bridged.home, "node", bridged.node)
    found: dict[str, str] = node["status"].get("allocatable") or {}
    return found


def _kubectl(bridged: Bridged, *args: str) -> subprocess.Popen[str]:
    """A kubectl that runs until the block ends."""
    command = [str(bridged.home.kubectl_path), f"--kubeconfig={bridged.home.kubeconfig}"]
    return subprocess.Popen(
        [*command, "-n", bridged.namespace, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _first_lines(bridged: Bridged, count: int, *args: str) -> list[str]:
    """The first lines that a kubectl prints, as they arrive."""
    with _kubectl(bridged, *args) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip() for _ in range(count)]
        process.kill()
    return lines


def _forwarded(bridged: Bridged) -> str:
    """The response of the pod's web server through `kubectl port-forward`."""
    with _kubectl(bridged, "port-forward", "talking", ":8080") as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[2]
        with urllib.request.urlopen(f"http://{address}/index.html", timeout=10) as answer:
            body: bytes = answer.read()
        process.kill()
    return body.decode().strip()


def _exec(
    bridged: Bridged,
    *command: str,
    env: dict[str, str],
    stdin: bytes = b"",
    flags: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[bytes]:
    kubectl = [str(bridged.home.kubectl_path), f"--kubeconfig={bridged.home.kubeconfig}"]
    return subprocess.run(
        [*kubectl, "-n", bridged.namespace, "exec", *flags, "shell", "--", *command],
        input=stdin,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env},
        timeout=60,
        check=False,
    )
