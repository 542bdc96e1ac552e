"""The admission policy of `bridge rbac home`, attacked with the bridge's own credential.

Each rule has an attempt that RBAC allows, beside an allowed request that differs from it only in
what the rule compares: so nothing else is the reason for the rejection.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.certificates.certificate_kinds import CLIENT, SERVING, CertificateKind
from bridge.certificates.signing_request import build_csr, generate_key
from e2e import service_accounts
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, create_namespace, get_one
from e2e.raw_requests import RawRequests
from e2e.service_accounts import IN_PLACE
from e2e.workload_manifests import pod, volume_claim

pytestmark = pytest.mark.core

#: Begins every message of the policy.
DENIED = "denied request: ServiceAccount cluster-bridge/"
_PODS = "/api/v1/namespaces/NAMESPACE/pods"
_EVENTS = "/api/v1/namespaces/NAMESPACE/events"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_ELECTIONS = "/apis/coordination.k8s.io/v1/namespaces/cluster-bridge/leases"
_SLICES = "/apis/discovery.k8s.io/v1/namespaces/NAMESPACE/endpointslices"
_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_VOLUMES = "/api/v1/persistentvolumes"
_CLAIMS = "/api/v1/namespaces/NAMESPACE/persistentvolumeclaims"
_CAPACITIES = "/apis/storage.k8s.io/v1/namespaces/cluster-bridge/csistoragecapacities"
_TOKEN = "/api/v1/namespaces/NAMESPACE/serviceaccounts/default/token"
_OURS = {
    "endpointslice.kubernetes.io/managed-by": "cluster-bridge-relay",
    "cluster-bridge.io/node": "NODE",
}


def _named(name: str, **fields: Any) -> Json:
    return {"metadata": {"name": name}, **fields}


def _event(name: str, **fields: Any) -> Json:
    about = {"kind": "Pod", "name": "mine", "namespace": "NAMESPACE"}
    return {"metadata": {"name": name}, "involvedObject": about, "reason": "Killing", **fields}


def _slice(name: str, **labels: str) -> Json:
    meta = {"name": name, "labels": {"kubernetes.io/service-name": "web", **labels}}
    return {"metadata": meta, "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.7"]}]}


def _bound_to(**reference: str) -> Json:
    return {"spec": {"boundObjectRef": {"apiVersion": "v1", **reference}}}


def _signing(name: str, kind: CertificateKind = SERVING, signer: str = "") -> Json:
    made = build_csr(kind, generate_key(), "any", [] if kind is CLIENT else ["192.0.2.7"])
    return _named(name, spec={**made["spec"], "signerName": signer or kind.signer})


def _volume(**source: Any) -> Json:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **source}
    return _named("forged-NODE", spec=spec)


def _capacity(**labels: str) -> Json:
    return {"metadata": {"name": "forged-NODE", "labels": labels}, "storageClassName": "any"}


def _claim_change(**metadata: Any) -> Json:
    return {"metadata": metadata}


def _evicted(name: str) -> tuple[str, str, Json]:
    return "POST", f"{_PODS}/{name}/eviction?dryRun=All", _named(name)


def _status(**status: Any) -> Json:
    return {"status": status}


#: A request, and the part of the message that names the rule.
REJECTED: dict[str, tuple[str, str, Any, str]] = {
    "delete-a-pod-of-another-node": ("DELETE", f"{_PODS}/theirs", None, "delete only pods on"),
    "write-its-status": (
        *("PATCH", f"{_PODS}/theirs/status", _status(podIP="192.0.2.7")),
        "write only the status of pods on",
    ),
    "label-a-pod-by-its-status": (
        *("PATCH", f"{_PODS}/mine/status", {"metadata": {"labels": {"app": "web"}}}),
        "without metadata",
    ),
    "annotate-a-pod-by-its-status": (
        *("PATCH", f"{_PODS}/mine/status", {"metadata": {"annotations": {"a": "b"}}}),
        "without metadata",
    ),
    "evict-a-pod-of-another-node": (*_evicted("theirs"), "evict only pods on"),
    "take-a-token-without-a-pod": ("POST", _TOKEN, {"spec": {}}, "bound to a pod"),
    "take-a-token-of-a-secret": (
        *("POST", _TOKEN, _bound_to(kind="Secret", name="any", uid="any")),
        "bound to a pod",
    ),
    "take-a-token-of-any-pod-of-a-name": (
        *("POST", _TOKEN, _bound_to(kind="Pod", name="mine")),
        "bound to a pod",
    ),
    "create-another-node": ("POST", "/api/v1/nodes", _named("OTHER"), "write only the Nodes"),
    "create-the-lease-of-another-node": ("POST", _LEASES, _named("OTHER"), "only the Leases"),
    "hold-the-election-of-another-node": (
        *("POST", _ELECTIONS, _named("election-OTHER")),
        "only the Leases",
    ),
    "report-an-event-of-a-kubelet": (
        *("POST", _EVENTS, _event("forged", source={"component": "kubelet", "host": "OTHER"})),
        "write only Events",
    ),
    "report-an-event-of-another-node": (
        *("POST", _EVENTS, _event("forged", source={"component": "cluster-bridge"})),
        "write only Events",
    ),
    "change-an-event-of-others": (
        *("PATCH", f"{_EVENTS}/theirs", {"source": {"component": "cluster-bridge"}}),
        "write only Events",
    ),
    "redirect-a-service": ("POST", _SLICES, _slice("forged"), "write only EndpointSlices"),
    "change-endpoints-of-others": (
        *("PATCH", f"{_SLICES}/theirs", {"metadata": {"labels": _OURS}}),
        "write only EndpointSlices",
    ),
    "delete-endpoints-of-others": ("DELETE", f"{_SLICES}/theirs", None, "only EndpointSlices"),
    "mount-a-directory-of-a-node": (
        *("POST", _VOLUMES, _volume(hostPath={"path": "/"})),
        "write only PersistentVolumes of the driver",
    ),
    "mount-a-disk-of-another-driver": (
        *("POST", _VOLUMES, _volume(csi={"driver": "example.com", "volumeHandle": "x"})),
        "write only PersistentVolumes of the driver",
    ),
    "grow-a-claim": (
        *("PATCH", f"{_CLAIMS}/theirs", {"spec": {"volumeName": "any"}}),
        "change only the selected node",
    ),
    "annotate-a-claim": (
        *("PATCH", f"{_CLAIMS}/theirs", _claim_change(annotations={"a": "b"})),
        "change only the selected node",
    ),
    "label-a-claim-by-its-status": (
        *("PATCH", f"{_CLAIMS}/theirs/status", _claim_change(labels={"a": "b"})),
        "change only the selected node",
    ),
    "report-the-capacity-of-others": (
        *("POST", _CAPACITIES, _capacity()),
        "write only CSIStorageCapacities",
    ),
    "request-a-client-certificate": (
        "POST",
        _REQUESTS,
        _signing("kubelet-serving-NODE-0123456789", signer="example.com/any"),
        "only certificates of its",
    ),
    "request-the-certificate-of-another-node": (
        *("POST", _REQUESTS, _signing("kubelet-serving-OTHER-0123456789")),
        "only certificates of its",
    ),
    "request-the-identity-of-another-node": (
        *("POST", _REQUESTS, _signing("kubelet-client-OTHER-0123456789", CLIENT)),
        "only certificates of its",
    ),
}

#: Their counterparts, and the code of the answer.
ALLOWED: dict[str, tuple[str, str, Any, int]] = {
    "write-the-status-of-a-pod": ("PATCH", f"{_PODS}/mine/status", _status(reason="Why"), 200),
    "evict-a-pod": (*_evicted("mine"), 201),
    "take-a-token-of-a-pod": (
        *("POST", _TOKEN, _bound_to(kind="Pod", name="mine", uid="UID-OF-MINE")),
        201,
    ),
    "create-the-node": ("POST", "/api/v1/nodes?dryRun=All", _named("NODE"), 201),
    "create-its-lease": ("POST", f"{_LEASES}?dryRun=All", _named("NODE"), 201),
    "hold-its-election": (
        *("POST", f"{_ELECTIONS}?dryRun=All", _named("election-NODE")),
        201,
    ),
    "report-an-event": (
        "POST",
        f"{_EVENTS}?dryRun=All",
        _event("ours", source={"component": "cluster-bridge", "host": "NODE"}),
        201,
    ),
    "report-an-event-of-the-remote": (
        "POST",
        f"{_EVENTS}?dryRun=All",
        _event("ours", source={"component": "kubelet"})
        | {"metadata": {"name": "ours", "labels": {"cluster-bridge.io/node": "NODE"}}},
        201,
    ),
    "publish-endpoints": ("POST", f"{_SLICES}?dryRun=All", _slice("ours", **_OURS), 201),
    "create-a-volume-of-the-bridge": (
        "POST",
        f"{_VOLUMES}?dryRun=All",
        _volume(csi={"driver": "volumes.cluster-bridge.io", "volumeHandle": "a/b/c"}),
        201,
    ),
    "select-a-node": (
        "PATCH",
        f"{_CLAIMS}/theirs?dryRun=All",
        _claim_change(annotations={"volume.kubernetes.io/selected-node": "NODE"}),
        200,
    ),
    "write-the-status-of-a-claim": (
        *("PATCH", f"{_CLAIMS}/theirs/status?dryRun=All", _status(capacity={"storage": "1Gi"})),
        200,
    ),
    "report-its-capacity": (
        "POST",
        f"{_CAPACITIES}?dryRun=All",
        _capacity(**{"cluster-bridge.io/node": "NODE"}),
        201,
    ),
    "request-its-certificate": (
        *("POST", f"{_REQUESTS}?dryRun=All", _signing("kubelet-serving-NODE-0123456789")),
        201,
    ),
    "request-its-identity": (
        *("POST", f"{_REQUESTS}?dryRun=All", _signing("kubelet-client-NODE-0123456789", CLIENT)),
        201,
    ),
    "delete-a-pod": ("DELETE", f"{_PODS}/mine?dryRun=All", None, 200),
}


@pytest.fixture(scope="module")
def confined(
    clusters: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RawRequests]:
    """The requests of an account, once its policies are in force."""
    home, node = clusters["home"], f"virtual-{uuid.uuid4().hex[:6]}"
    namespace, other = f"policy-{node[8:]}", f"{node}-other"
    account = service_accounts.in_place_of_node(home, tmp_path_factory.mktemp("account"), node)
    create_namespace(home, namespace)
    try:
        service_accounts.bind(home, f"{node}{IN_PLACE}", namespace)
        for manifest in (
            *(pod("", name, nodeName=on) for name, on in (("mine", node), ("theirs", other))),
            json.dumps({"apiVersion": "v1", "kind": "Event", **_event("theirs")}).replace(
                "NAMESPACE", namespace
            ),
            volume_claim("theirs", "none-of-them"),
            json.dumps(
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    **_slice("theirs"),
                    "ports": [],
                }
            ),
        ):
            home.kubectl("create", "-n", namespace, "-f", "-", input=manifest)
        mine = get_one(home, "pod", "mine", namespace=namespace)
        words = {"OTHER": other, "NODE": node, "NAMESPACE": namespace}
        requests = RawRequests(account, words | {"UID-OF-MINE": mine["metadata"]["uid"]})
        # Dry runs, since the policies may not be in force yet.
        requests.wait_until_rejected("DELETE", f"{_PODS}/theirs?dryRun=All", None, DENIED)
        requests.wait_until_rejected(*_evicted("theirs"), DENIED)
        yield requests
    finally:
        home.kubectl("delete", "namespace", namespace, "--wait=false")
        service_accounts.take_away_at_home(home, f"{node}{IN_PLACE}")


@pytest.mark.parametrize("attempt", REJECTED.values(), ids=REJECTED)
def test_account_cannot_leave_its_node(
    confined: RawRequests, attempt: tuple[str, str, Any, str]
) -> None:
    *request, rule = attempt
    answer = confined.send(*request)
    assert answer.code == 403, answer
    assert DENIED in answer.text
    assert rule in answer.text
    assert "`bridge rbac home --name NODE" in answer.text, "the remedy is named"


@pytest.mark.parametrize("attempt", ALLOWED.values(), ids=ALLOWED)
def test_account_can_serve_its_node(
    confined: RawRequests, attempt: tuple[str, str, Any, int]
) -> None:
    *request, code = attempt
    answer = confined.send(*request)
    assert answer.code == code, answer
    assert DENIED not in answer.text


def test_policies_have_no_type_errors(confined: RawRequests, clusters: dict[str, Cluster]) -> None:
    """The API server checks the expressions against the types of all matched resources."""
    del confined
    found = clusters["home"].kubectl("get", "validatingadmissionpolicies", "-o", "json").stdout
    checks = {
        it["metadata"]["name"]: it.get("status", {})
        .get("typeChecking", {})
        .get("expressionWarnings")
        for it in json.loads(found)["items"]
    }
    assert not {name: it for name, it in checks.items() if it}
