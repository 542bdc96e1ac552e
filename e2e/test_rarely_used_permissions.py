"""Requests that the bridge sends only in case of a name collision or an unusual client request.

Each needs a permission that no other test uses: `e2e.used_permissions` would report it as unused.
"""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.workload_manifests import busybox, config_map, pod, secret, shell
from translators.mirror import endpoint_slice
from translators.virtual_node_identity import Identity, home_id_from_uid

LABEL = "kubernetes.io/service-name"


def _service(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 80}]},
    }


def _slice(name: str, *, of: str) -> Json:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {LABEL: of}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.99"]}],
        "ports": [{"port": 80}],
    }


def _identity(bridged: Bridged) -> Identity:
    uid = get_one(bridged.home, "namespace", "kube-system")["metadata"]["uid"]
    return Identity(home_id=home_id_from_uid(uid), home_name="e2e", node=bridged.node)


def _collision_counts(bridged: Bridged) -> dict[str, int]:
    """Kind → how often its name collision was reported."""
    return {
        event["involvedObject"]["kind"]: event["count"] for event in bridged.events("RemoteClash")
    }


def test_unmanaged_objects_of_every_copied_resource_are_left_alone(bridged: Bridged) -> None:
    """An unmanaged Secret, Service and EndpointSlice; reported again after a restart, as counts."""
    bridged.apply(busybox(bridged.node, "first", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
    there = bridged.remote_namespace
    slice_name = endpoint_slice.remote_name("mine-1", _identity(bridged))
    foreign = [
        secret("taken", {"whose": "theirs"}),
        json.dumps(_service("taken")),
        json.dumps(_slice(slice_name, of="theirs")),
    ]
    for manifest in foreign:
        bridged.remote.kubectl("apply", "-n", there, "-f", "-", input=manifest)
    names = (("secret", "taken"), ("service", "taken"), ("endpointslice", slice_name))
    before = [_version(bridged, *it) for it in names]

    bridged.apply(secret("taken", {"whose": "ours"}))
    for made in (_service("taken"), _service("mine"), _slice("mine-1", of="mine")):
        bridged.apply(json.dumps(made))
    main = shell("main", "sleep 3600", envFrom=[{"secretRef": {"name": "taken"}}])
    bridged.apply(pod(bridged.node, "needs", containers=[main]))
    kinds = {"Pod", "Secret", "Service", "EndpointSlice"}
    wait_for(lambda: kinds <= _collision_counts(bridged).keys(), "all collisions are reported")
    assert bridged.bridge.stop() == 0
    bridged.bridge.start()
    wait_for(
        lambda: _collision_counts(bridged)["Service"] > 1, "it is reported again in the same Event"
    )
    assert [_version(bridged, *it) for it in names] == before
    for kind, name in names:
        bridged.remote.kubectl("delete", kind, name, "-n", there)
    wait_for(lambda: sum(map(is_ready, bridged.home_pods())) == 2, "the pod goes on", seconds=120)


def _version(bridged: Bridged, kind: str, name: str) -> str:
    found = get_one(bridged.remote, kind, name, namespace=bridged.remote_namespace)
    return str(found["metadata"]["resourceVersion"])


def test_copies_of_every_resource_are_updated(bridged: Bridged) -> None:
    """A ConfigMap, a Secret, a Service, an EndpointSlice and the pod itself are patched."""
    bridged.apply(config_map("conf", {"KEY": "1"}))
    bridged.apply(secret("key", {"KEY": "1"}))
    bridged.apply(json.dumps(_service("web")))
    bridged.apply(json.dumps(_slice("web-1", of="web")))
    sources = [{"configMapRef": {"name": "conf"}}, {"secretRef": {"name": "key"}}]
    bridged.apply(
        pod(bridged.node, "uses", containers=[shell("main", "sleep 3600", envFrom=sources)])
    )
    wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
    name = endpoint_slice.remote_name("web-1", _identity(bridged))
    kinds = (("configmap", "conf"), ("secret", "key"), ("service", "web"), ("pod", "uses"))
    wait_for(lambda: name in _names(bridged, "endpointslices"), "the slice is copied")
    for kind, its in (*kinds, ("endpointslice", "web-1")):
        bridged.kubectl("label", kind, its, "changed=yes")
    for kind, its in (*kinds, ("endpointslice", name)):
        wait_for(
            lambda kind=kind, its=its: (  # type: ignore[misc]
                get_one(bridged.remote, kind, its, namespace=bridged.remote_namespace)["metadata"][
                    "labels"
                ].get("changed")
            ),
            f"{kind} {its} follows",
        )
    for kind in ("service/web", "configmap/conf"):
        bridged.kubectl("delete", kind)
    wait_for(lambda: "web" not in _names(bridged, "services"), "the Service goes")


def _names(bridged: Bridged, kinds: str) -> set[str]:
    found = get(bridged.remote, kinds, namespace=bridged.remote_namespace)
    return {it["metadata"]["name"] for it in found}


@pytest.mark.parametrize(
    "path", ["attach/{namespace}/shell/main?output=1", "portForward/{namespace}/shell?port=80"]
)
def test_untranslated_websockets_are_forwarded(bridged: Bridged, path: str) -> None:
    """Some clients of a kubelet use GET; so does an API server of 1.36."""
    from websocket import create_connection

    bridged.apply(pod(bridged.node, "shell", containers=[shell("main", "sleep 3600")]))
    wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
    bridged.kubectl("create", "serviceaccount", "caller")
    binding = f"caller-{bridged.namespace}"
    rights = ("--clusterrole=cluster-admin", f"--serviceaccount={bridged.namespace}:caller")
    bridged.kubectl("create", "clusterrolebinding", binding, *rights)
    status = get_one(bridged.home, "node", bridged.node)["status"]
    address = status["addresses"][0]["address"]
    port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    with ExitStack() as stack:
        stack.callback(bridged.kubectl, "delete", "clusterrolebinding", binding)
        token = bridged.kubectl("create", "token", "caller").strip()
        made = create_connection(
            f"wss://{address}:{port}/{path.format(namespace=bridged.namespace)}",
            header=[f"Authorization: Bearer {token}"],
            subprotocols=["v4.channel.k8s.io"],
            sslopt={"cert_reqs": 0, "check_hostname": False},
            timeout=30,
        )
        stack.callback(made.shutdown)
        assert made.getsubprotocol() == "v4.channel.k8s.io"
