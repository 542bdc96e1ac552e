"""`bridge fleet render`: the objects of a bridge at home whose joins are objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from bridge.base.join_settings import JoinSettings, Part
from bridge.fleet.port_assignment import assign_ports
from bridge.install.fleet_installation import MAX_NODES, NAME, PORTS, TOKENS
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.cli.conftest import Invoke

Objects = dict[tuple[str, str, str], dict[str, Any]]


def rendered(invoke: Invoke, *arguments: str) -> Objects:
    done = invoke("fleet", "render", *arguments)
    assert done.exit_code == 0, done.output
    found = {}
    for it in yaml.safe_load_all(done.stdout):
        meta = it["metadata"]
        key = (it["kind"], meta.get("namespace", ""), meta["name"])
        assert key not in found
        found[key] = it
    return found


def pod_of(found: Objects) -> dict[str, Any]:
    pod: dict[str, Any] = found["Deployment", "cluster-bridge", NAME]["spec"]["template"]["spec"]
    return pod


def test_definition_permissions_and_deployment_are_printed_without_a_credential(
    invoke: Invoke,
) -> None:
    found = rendered(
        *(invoke, "inventory", "--name", "osaka", "--name", "lima", "--image", "i:1"),
        *("--bind", "shop", "--replicas", "3"),
    )
    kinds = [kind for kind, _, _ in found]
    assert kinds[0] == "CustomResourceDefinition", "it is applied first"
    assert ("CustomResourceDefinition", "", "remotes.cluster-bridge.io") in found
    assert {name for kind, _, name in found if kind == "Namespace"} == {
        "inventory",
        "cluster-bridge",
    }
    (kept,) = [it for (kind, _, _), it in found.items() if kind == "Secret"]
    assert kept.keys() == {"apiVersion", "kind", "metadata"}, "applying it keeps its content"
    assert found["Deployment", "cluster-bridge", NAME]["spec"]["replicas"] == 3
    assert pod_of(found)["serviceAccountName"] == NAME

    assert ("RoleBinding", "shop", f"cluster-bridge:{NAME}:home-namespace") in found
    roles = json.dumps(found["Role", "inventory", f"cluster-bridge:{NAME}:remotes"])
    assert "remotes/status" in roles
    (rule,) = found["Role", "cluster-bridge", f"cluster-bridge:{NAME}:state"]["rules"]
    assert rule["resourceNames"] == [TOKENS]
    assert rule["verbs"] == ["get", "patch"]
    (policy,) = [
        it
        for (kind, _, name), it in found.items()
        if kind == "ValidatingAdmissionPolicy" and name.endswith(".home")
    ]
    text = json.dumps(policy)
    assert "osaka" in text
    assert "lima" in text


def test_container_has_probes_and_keeps_credentials_off_the_disk(invoke: Invoke) -> None:
    pod = pod_of(rendered(invoke, "inventory", "--name", "osaka", "--image", "i:1"))
    (container,) = pod["containers"]
    assert container["image"] == "i:1"
    assert container["args"] == [
        *("run", "--remotes=inventory", "--health-port=8081"),
        *(f"--token-secret={TOKENS}", "--log-format=json"),
    ]
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {
        "startup": {"path": "/livez", "port": "health"},
        "liveness": {"path": "/livez", "port": "health"},
        "readiness": {"path": "/readyz", "port": "health"},
    }
    assert container["ports"] == [{"name": "health", "containerPort": 8081}]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"name": "XDG_STATE_HOME", "value": "/state"} in container["env"]
    mounts = {it["name"]: it["mountPath"] for it in container["volumeMounts"]}
    assert mounts == {
        "tmp": "/tmp",
        "state": "/state/cluster-bridge",
        "tokens": "/state/cluster-bridge/renewed-tokens",
    }
    volumes = {it["name"]: it for it in pod["volumes"]}
    assert (
        volumes["state"]["emptyDir"]["medium"] == volumes["tmp"]["emptyDir"]["medium"] == "Memory"
    )
    assert volumes["tokens"]["secret"]["secretName"] == TOKENS


def test_kubelet_apis_of_all_nodes_are_reachable(invoke: Invoke) -> None:
    found = rendered(invoke, "inventory", "--name", "osaka")
    policy = found["NetworkPolicy", "cluster-bridge", NAME]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= (
        found["Deployment", "cluster-bridge", NAME]["spec"]["template"]["metadata"][
            "labels"
        ].items()
    )
    open_to_all, from_pods = policy["ingress"]
    assert open_to_all == {
        "ports": [
            {"protocol": "TCP", "port": 10250, "endPort": 11249},
            {"protocol": "TCP", "port": 8081},
        ]
    }
    assert from_pods == {"from": [{"namespaceSelector": {}}]}

    nodes = [f"n{it}" for it in range(MAX_NODES)]
    parts = {it: Part(it, JoinSettings(KubeconfigRef(), KubeconfigRef(), name=it)) for it in nodes}
    assigned = assign_ports(parts, nodes, {})
    assert {it.settings.port for it in assigned.values()} == set(PORTS)


def test_cluster_profiles_are_served_without_the_definition_of_their_manager(
    invoke: Invoke,
) -> None:
    found = rendered(invoke, "cluster-bridge", "--cluster-profiles", "--name", "osaka")
    assert not [it for it in found if it[0] == "CustomResourceDefinition"]
    assert [name for kind, _, name in found if kind == "Namespace"] == ["cluster-bridge"]
    assert pod_of(found)["containers"][0]["args"][1] == "--cluster-profiles=cluster-bridge"
    assert ("Role", "cluster-bridge", f"cluster-bridge:{NAME}:cluster-profiles") in found


def test_command_that_binds_a_namespace_is_shown_if_none_is_bound(invoke: Invoke) -> None:
    command = "`bridge rbac namespace NAME --account fleets/bridge-fleet | kubectl apply -f -`"
    unbound = invoke("fleet", "render", "a", "--name", "b", "-n", "fleets")
    assert command in unbound.stderr
    assert not invoke("fleet", "render", "a", "--name", "b", "--bind", "shop").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a",), "--name is required"),
        (("A_b", "--name", "a"), "A_b"),
        (("a", "--name", "B"), '"B" is not a node name'),
        (("a", "--name", "b", "--bind", "c", "--all-namespaces"), "exclude each other"),
        (
            ("a", *(word for it in range(MAX_NODES + 1) for word in ("--name", f"n{it}"))),
            f"more than the {MAX_NODES} of one installation",
        ),
    ],
)
def test_wrong_use_is_rejected(invoke: Invoke, arguments: tuple[str, ...], message: str) -> None:
    done = invoke("fleet", "render", *arguments)
    assert done.exit_code == 2
    assert message in done.output
