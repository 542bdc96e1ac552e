"""The admission policies of `bridge rbac remote --policy`, attacked by a tenant of the remote who
imitates the bridge, and with the bridge's own credential.

RBAC allows each attempt. The bridges of all other end-to-end tests run with these policies, too
(`e2e.service_accounts`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bridge.rbac.admission_policy import CONNECTED
from bridge.rbac.rbac_manifests import Account
from e2e import service_accounts
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, create_namespace, get, wait_for
from e2e.raw_requests import RawRequests
from e2e.workload_manifests import pod

pytestmark = pytest.mark.core

_DOMAIN = "cluster-bridge.io"
_HOME = {f"{_DOMAIN}/home": "0123456789abcdef"}
_ACCEPTS = {f"{_DOMAIN}/accepts-home": "*"}
_USED_BY = {f"used-by.{_DOMAIN}/far": "true"}
_NAMESPACES = "/api/v1/namespaces"
_TARGET = {"apiVersion": "v1", "kind": "Node", "name": "any"}
_ABSENT_OWNER = {"apiVersion": "v1", "kind": "Node", "name": "none", "uid": str(uuid.uuid4())}
#: Parts of the messages of the rules.
RESERVED, HANDOVER = "are reserved to Cluster Bridge", "hands a namespace over"
PLACES, LABELLED = "only in namespaces of the bridge", "only objects with the label"
CLAIMS, KUBELETS = "only Leases of claims", "only metrics of kubelets"
MAKES, CHANGES = "create and delete only namespaces", "change only namespaces of the bridge"


def _in(namespace: str, resource: str, rest: str = "") -> str:
    groups = {
        "endpointslices": "/apis/discovery.k8s.io/v1",
        "leases": "/apis/coordination.k8s.io/v1",
    }
    return f"{groups.get(resource, '/api/v1')}/namespaces/{namespace}/{resource}{rest}"


def _meta(name: str = "", *, labels: Any = None, annotations: Any = None) -> Json:
    fields = {"name": name, "labels": labels, "annotations": annotations}
    return {"metadata": {key: it for key, it in fields.items() if it}}


def _pod(name: str, **meta: Any) -> Json:
    made: Json = json.loads(pod("any", name, meta))
    return made


def _slice(name: str) -> Json:
    return {**_meta(name, labels=_HOME), "addressType": "IPv4", "endpoints": []}


Attempt = tuple[str, str, Any, str]

#: Attempts of a tenant, and the rules that reject them. THEIRS is the tenant's namespace, MANAGED
#: one that a bridge created, GRANTED one that was handed over.
OF_TENANT: dict[str, Attempt] = {
    "create-a-namespace-of-the-bridge": (
        *("POST", _NAMESPACES, _meta("forged-THEIRS", labels=_HOME)),
        RESERVED,
    ),
    "hand-over-a-new-namespace": (
        *("POST", _NAMESPACES, _meta("forged-THEIRS", annotations=_ACCEPTS)),
        HANDOVER,
    ),
    "hand-over-a-namespace": (
        *("PATCH", f"{_NAMESPACES}/THEIRS", _meta(annotations=_ACCEPTS)),
        HANDOVER,
    ),
    "take-a-namespace-back": (
        *("PATCH", f"{_NAMESPACES}/GRANTED", _meta(annotations={f"{_DOMAIN}/accepts-home": None})),
        HANDOVER,
    ),
    "register-a-node": (
        *("PATCH", f"{_NAMESPACES}/GRANTED", _meta(annotations=_USED_BY)),
        RESERVED,
    ),
    "label-a-namespace": ("PATCH", f"{_NAMESPACES}/THEIRS", _meta(labels=_HOME), RESERVED),
    "create-a-pod-of-the-bridge": (
        *("POST", _in("THEIRS", "pods"), _pod("forged", labels=_HOME)),
        RESERVED,
    ),
    "report-a-status-by-labels": (
        *("PATCH", _in("THEIRS", "pods", "/theirs/status"), _meta(labels=_HOME)),
        RESERVED,
    ),
    "annotate-a-pod-by-its-binding": (
        "POST",
        _in("MANAGED", "pods", "/ours/binding"),
        {**_meta("ours", annotations={f"{_DOMAIN}/home-uid": "any"}), "target": _TARGET},
        RESERVED,
    ),
    "label-a-configmap": (
        *("PATCH", _in("THEIRS", "configmaps", "/theirs"), _meta(labels=_HOME)),
        RESERVED,
    ),
    "disown-a-configmap": (
        *("PATCH", _in("MANAGED", "configmaps", "/ours"), _meta(labels={f"{_DOMAIN}/home": None})),
        RESERVED,
    ),
    "rename-the-original": (
        "PATCH",
        _in("MANAGED", "configmaps", "/ours"),
        _meta(annotations={f"{_DOMAIN}/home-uid": "forged"}),
        RESERVED,
    ),
    "forget-the-original": (
        "PATCH",
        _in("MANAGED", "configmaps", "/ours"),
        _meta(annotations={f"{_DOMAIN}/home-uid": None}),
        RESERVED,
    ),
    "create-a-secret-of-the-bridge": (
        *("POST", _in("THEIRS", "secrets"), _meta("forged", labels=_HOME)),
        RESERVED,
    ),
    "create-a-service-of-the-bridge": (
        "POST",
        _in("THEIRS", "services"),
        {**_meta("forged", labels=_HOME), "spec": {"ports": [{"port": 80}]}},
        RESERVED,
    ),
    "copy-labels-by-endpoints": (
        *("POST", _in("THEIRS", "endpoints"), _meta("forged", labels=_HOME)),
        RESERVED,
    ),
    "create-endpoints-of-the-bridge": (
        *("POST", _in("THEIRS", "endpointslices"), _slice("forged")),
        RESERVED,
    ),
    "claim-a-virtual-node": (
        *("POST", _in("kube-node-lease", "leases"), _meta("cluster-bridge.any", labels=_HOME)),
        RESERVED,
    ),
}
#: Requests of a tenant that pass, as dry runs: nothing of the bridge's metadata changes.
TENANT_MAY: dict[str, tuple[str, str, Any]] = {
    "create-a-namespace": ("POST", _NAMESPACES, _meta("new-THEIRS")),
    "create-a-pod": ("POST", _in("THEIRS", "pods"), _pod("new", labels={"app": "web"})),
    "create-a-pod-beside-the-bridges": ("POST", _in("MANAGED", "pods"), _pod("new")),
    "change-data-of-the-bridge": (
        *("PATCH", _in("MANAGED", "configmaps", "/ours"), {"data": {"a": "b"}}),
    ),
    "label-an-object-of-the-bridge": (
        *("PATCH", _in("MANAGED", "configmaps", "/ours"), _meta(labels={"team": "a"})),
    ),
    "label-a-namespace-of-the-bridge": (
        *("PATCH", f"{_NAMESPACES}/MANAGED", _meta(labels={"team": "a"})),
    ),
    "offload-a-namespace": (
        *("PATCH", f"{_NAMESPACES}/THEIRS", _meta(labels={f"{_DOMAIN}/offload": "burst"})),
    ),
}

#: Attempts with the bridge's stolen credential.
OF_BRIDGE: dict[str, Attempt] = {
    "write-in-another-namespace": (
        *("POST", _in("THEIRS", "configmaps"), _meta("forged", labels=_HOME)),
        PLACES,
    ),
    "run-a-pod-in-kube-system": (
        *("POST", _in("kube-system", "pods"), _pod("forged", labels=_HOME)),
        PLACES,
    ),
    "exec-in-another-namespace": (
        *("POST", _in("THEIRS", "pods", "/theirs/exec?command=id"), None),
        PLACES,
    ),
    "exec-by-get": ("GET", _in("THEIRS", "pods", "/theirs/exec?command=id"), None, PLACES),
    "attach-in-another-namespace": (
        *("POST", _in("THEIRS", "pods", "/theirs/attach"), None),
        PLACES,
    ),
    "forward-a-port-of-another-namespace": (
        *("POST", _in("THEIRS", "pods", "/theirs/portforward"), None),
        PLACES,
    ),
    "create-an-unmanaged-object": ("POST", _in("MANAGED", "secrets"), _meta("forged"), LABELLED),
    "change-an-unmanaged-object": (
        *("PATCH", _in("GRANTED", "configmaps", "/theirs"), {"data": {"a": "b"}}),
        LABELLED,
    ),
    "take-an-unmanaged-object": (
        *("PATCH", _in("GRANTED", "configmaps", "/theirs"), _meta(labels=_HOME)),
        LABELLED,
    ),
    "delete-an-unmanaged-object": (
        *("DELETE", _in("GRANTED", "configmaps", "/theirs"), None),
        LABELLED,
    ),
    "renew-the-lease-of-a-node": (
        *("PATCH", _in("kube-node-lease", "leases", "/MACHINE"), {"spec": {"holderIdentity": "x"}}),
        CLAIMS,
    ),
    "create-the-lease-of-a-node": (
        *("POST", _in("kube-node-lease", "leases"), _meta("any", labels=_HOME)),
        CLAIMS,
    ),
    "list-pods-of-a-kubelet": ("GET", "/api/v1/nodes/MACHINE/proxy/pods", None, KUBELETS),
    "run-a-command-by-a-kubelet": (
        *("GET", "/api/v1/nodes/MACHINE/proxy/exec/THEIRS/theirs/main?command=id", None),
        KUBELETS,
    ),
    "create-an-unmanaged-namespace": ("POST", _NAMESPACES, _meta("forged-THEIRS"), MAKES),
    "delete-a-namespace": ("DELETE", f"{_NAMESPACES}/THEIRS", None, MAKES),
    "delete-a-namespace-that-was-handed-over": ("DELETE", f"{_NAMESPACES}/GRANTED", None, MAKES),
    "take-a-namespace": ("PATCH", f"{_NAMESPACES}/THEIRS", _meta(labels=_HOME), CHANGES),
    "hand-over-a-namespace": (
        *("PATCH", f"{_NAMESPACES}/MANAGED", _meta(annotations=_ACCEPTS)),
        HANDOVER,
    ),
    "lift-pod-security": (
        "PATCH",
        f"{_NAMESPACES}/GRANTED",
        _meta(labels={"pod-security.kubernetes.io/enforce": "privileged"}),
        CHANGES,
    ),
    "change-other-annotations": (
        *("PATCH", f"{_NAMESPACES}/GRANTED", _meta(annotations={"scheduler": "any"})),
        CHANGES,
    ),
    "have-a-namespace-garbage-collected": (
        "PATCH",
        f"{_NAMESPACES}/GRANTED",
        {"metadata": {"ownerReferences": [_ABSENT_OWNER]}},
        CHANGES,
    ),
    "keep-a-namespace-for-ever": (
        *("PATCH", f"{_NAMESPACES}/GRANTED", {"metadata": {"finalizers": [f"{_DOMAIN}/any"]}}),
        CHANGES,
    ),
    "give-a-namespace-to-another-home": (
        *("PATCH", f"{_NAMESPACES}/MANAGED", _meta(labels={f"{_DOMAIN}/home": "another"})),
        CHANGES,
    ),
}
#: Its requests that pass, as dry runs, and the code of the answer: connections fail at the missing
#: pod.
BRIDGE_MAY: dict[str, tuple[str, str, Any, int]] = {
    "create-a-namespace": ("POST", _NAMESPACES, _meta("new-MANAGED", labels=_HOME), 201),
    "delete-its-namespace": ("DELETE", f"{_NAMESPACES}/MANAGED", None, 200),
    "register-in-a-namespace": (
        *("PATCH", f"{_NAMESPACES}/GRANTED", _meta(annotations=_USED_BY)),
        200,
    ),
    "write-in-its-namespace": (
        *("POST", _in("MANAGED", "pods"), _pod("new", labels=_HOME)),
        201,
    ),
    "write-in-a-granted-namespace": (
        *("POST", _in("GRANTED", "secrets"), _meta("new", labels=_HOME)),
        201,
    ),
    "delete-its-object": ("DELETE", _in("MANAGED", "configmaps", "/ours"), None, 200),
    "exec": ("POST", _in("MANAGED", "pods", "/none/exec?command=id"), None, 404),
    "forward-a-port": ("GET", _in("GRANTED", "pods", "/none/portforward"), None, 404),
    "scrape-a-kubelet": ("GET", "/api/v1/nodes/MACHINE/proxy/metrics/resource", None, 200),
    "claim": (
        *("POST", _in("kube-node-lease", "leases"), _meta("cluster-bridge.any", labels=_HOME)),
        201,
    ),
}


@dataclass(frozen=True)
class Remote:
    """The remote with the requests of the bridge's account and of a tenant."""

    cluster: Cluster
    bridge: RawRequests
    tenant: RawRequests
    managed: str
    theirs: str


def _dry(path: str) -> str:
    """The path of a dry run, where the API has them."""
    if any(f"/{it}" in path for it in CONNECTED):
        return path
    return path + ("&" if "?" in path else "?") + "dryRun=All"


@pytest.fixture(scope="module")
def guarded(
    clusters: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Remote]:
    """The namespaces and objects of the attempts, once the policies are in force."""
    remote, folder = clusters["remote"], tmp_path_factory.mktemp("accounts")
    tail = uuid.uuid4().hex[:6]
    names = {"THEIRS": f"theirs-{tail}", "MANAGED": f"managed-{tail}", "GRANTED": f"granted-{tail}"}
    words = {**names, "MACHINE": remote.node_names[0]}
    theirs, managed, granted = names.values()
    bridge = RawRequests(service_accounts.in_remote(remote, folder), words)
    try:
        for name in (theirs, granted):
            create_namespace(remote, name)
            remote.kubectl("create", "configmap", "theirs", "-n", name)
        remote.kubectl("annotate", "namespace", granted, f"{_DOMAIN}/accepts-home=*")
        remote.kubectl("create", "-n", theirs, "-f", "-", input=json.dumps(_pod("theirs")))
        tenant = RawRequests(_tenant(remote, theirs, folder), words)
        for requests, attempts in ((tenant, OF_TENANT), (bridge, OF_BRIDGE)):
            method, path, body, rule = next(iter(attempts.values()))
            requests.wait_until_rejected(method, _dry(path), body, rule)
        for path, body in (
            (_NAMESPACES, _meta(managed, labels=_HOME)),
            (
                _in(managed, "configmaps"),
                _meta("ours", labels=_HOME, annotations={f"{_DOMAIN}/home-uid": "any"}),
            ),
        ):
            answer = bridge.send("POST", path, body)
            assert answer.code == 201, answer
        wait_for(
            lambda: get(remote, "serviceaccounts", namespace=managed), "the namespace takes pods"
        )
        wait_for(
            lambda: get(remote, "leases", namespace="kube-node-lease"),
            "the kubelet of a new cluster has its Lease",
        )
        yield Remote(remote, bridge, tenant, managed, theirs)
    finally:
        remote.kubectl("delete", "namespace", *names.values(), "--wait=false", "--ignore-not-found")
        for kind in ("clusterrolebinding", "clusterrole"):
            remote.kubectl("delete", kind, theirs, "--ignore-not-found")


def _tenant(remote: Cluster, name: str, folder: Any) -> Cluster:
    """A handle for an account that may write all resources of the attempts."""
    resources = "pods,pods/status,pods/binding,configmaps,secrets,services,endpoints,namespaces"
    remote.kubectl(
        *("create", "clusterrole", name, "--verb=create,get,list,patch,update,delete"),
        f"--resource={resources},endpointslices.discovery.k8s.io,leases.coordination.k8s.io",
    )
    remote.kubectl("create", "serviceaccount", "tenant", "-n", name)
    binding = ("create", "clusterrolebinding", name, f"--clusterrole={name}")
    remote.kubectl(*binding, f"--serviceaccount={name}:tenant")
    return service_accounts.handle_of(remote, folder, Account(name, "tenant"))


def _rejected(requests: RawRequests, attempt: Attempt) -> None:
    *request, rule = attempt
    answer = requests.send(*request)
    assert answer.code == 403, answer
    assert "ValidatingAdmissionPolicy" in answer.text
    assert rule in answer.text


@pytest.mark.parametrize("attempt", OF_TENANT.values(), ids=OF_TENANT)
def test_tenant_cannot_imitate_a_bridge(guarded: Remote, attempt: Attempt) -> None:
    _rejected(guarded.tenant, attempt)


@pytest.mark.parametrize("request_", TENANT_MAY.values(), ids=TENANT_MAY)
def test_tenant_is_not_hindered(guarded: Remote, request_: tuple[str, str, Any]) -> None:
    method, path, body = request_
    answer = guarded.tenant.send(method, _dry(path), body)
    assert answer.code < 300, answer


@pytest.mark.parametrize("attempt", OF_BRIDGE.values(), ids=OF_BRIDGE)
def test_account_cannot_leave_its_objects_and_namespaces(guarded: Remote, attempt: Attempt) -> None:
    _rejected(guarded.bridge, attempt)


@pytest.mark.parametrize("request_", BRIDGE_MAY.values(), ids=BRIDGE_MAY)
def test_account_can_serve_its_namespaces(
    guarded: Remote, request_: tuple[str, str, Any, int]
) -> None:
    method, path, body, code = request_
    answer = guarded.bridge.send(method, _dry(path), body)
    assert answer.code == code, answer
    assert "ValidatingAdmissionPolicy" not in answer.text


def test_controller_creates_no_pod_with_the_label_of_a_bridge(guarded: Remote) -> None:
    """A tenant could otherwise have it created from a template."""
    template = {**_meta(labels={"app": "forged", **_HOME}), "spec": _pod("any")["spec"]}
    spec = {"selector": {"matchLabels": {"app": "forged"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", **_meta("forged"), "spec": spec}
    guarded.cluster.kubectl("create", "-n", guarded.theirs, "-f", "-", input=json.dumps(body))

    def rejected() -> bool:
        events = get(guarded.cluster, "events", namespace=guarded.theirs)
        return any(it["reason"] == "FailedCreate" and RESERVED in it["message"] for it in events)

    wait_for(rejected, "the controller reports it")


def test_controller_copies_the_labels_of_a_service(guarded: Remote) -> None:
    service = {
        **_meta("web", labels=_HOME),
        "spec": {"ports": [{"port": 80}], "selector": {"app": "web"}},
    }
    answer = guarded.bridge.send("POST", _in(guarded.managed, "services"), service)
    assert answer.code == 201, answer

    def copied() -> bool:
        slices = get(guarded.cluster, "endpointslices", namespace=guarded.managed)
        return any(_HOME.items() <= it["metadata"]["labels"].items() for it in slices)

    wait_for(copied, "the controller creates a slice with them")


def test_administrators_are_exempt(guarded: Remote) -> None:
    """They repair what a bridge left, and hand namespaces over."""
    there = ("configmap", "theirs", "-n", guarded.theirs)
    guarded.cluster.kubectl("label", *there, f"{_DOMAIN}/home=any")
    guarded.cluster.kubectl("label", *there, f"{_DOMAIN}/home-")


def test_policies_have_no_type_errors(guarded: Remote) -> None:
    found = guarded.cluster.kubectl("get", "validatingadmissionpolicies", "-o", "json").stdout
    policies = json.loads(found)["items"]
    assert len(policies) >= 2
    checks = {
        it["metadata"]["name"]: it.get("status", {}).get("typeChecking", {}) for it in policies
    }
    assert not {name: it for name, it in checks.items() if it.get("expressionWarnings")}
