"""The auditor finds what it is for: each kind of finding, and nothing where all is well."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.audit.copied_objects import check_copies, check_namespaces, references
from e2e.audit.findings import COPIED_KEYS, GATE, Finding, Kind
from e2e.audit.pod_history import History
from e2e.audit.pod_pairs import check_pods
from e2e.audit.unmanaged_changes import check_home, check_unmanaged, snapshot

Json = dict[str, Any]

NODE, ADDRESS = "virtual", "192.0.2.7"
OURS = {"cluster-bridge.io/home": "abc", "cluster-bridge.io/node": NODE}


def origin(name: str, uid: str) -> Json:
    return {
        "cluster-bridge.io/home-namespace": "shop",
        "cluster-bridge.io/home-name": name,
        "cluster-bridge.io/home-uid": uid,
    }


def obj(kind: str, name: str, uid: str, *, namespace: str = "shop", **fields: Any) -> Json:
    meta: Json = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1"}
    meta |= fields.pop("metadata", {})
    return {"kind": kind, "metadata": meta, **fields}


def stands_for(home: Json, **changed: Any) -> Json:
    """The remote object of a home object, as it should be."""
    meta = home["metadata"]
    there = copy.deepcopy(home)
    copied = {field: sorted(meta.get(field, ())) for field in ("labels", "annotations")}
    record = {COPIED_KEYS: json.dumps(copied)}
    there["metadata"] |= {
        "namespace": "shop-h",
        "uid": meta["uid"].replace("home", "remote"),
        "labels": {**meta.get("labels", {}), **OURS, "by-hand": "yes"},
        "annotations": {
            **meta.get("annotations", {}),
            **origin(meta["name"], meta["uid"]),
            **record,
        },
    }
    return there | changed


def home_pod() -> Json:
    status = {
        "phase": "Running",
        "hostIP": ADDRESS,
        "podIP": "10.9.0.1",
        "startTime": "2030-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "main",
                "containerID": "containerd://1",
                "restartCount": 0,
                "ready": True,
                "state": {"running": {"startedAt": "2030-01-01T00:00:02Z"}},
            }
        ],
    }
    spec = {
        "nodeName": NODE,
        "restartPolicy": "Always",
        "tolerations": [{"key": "x", "operator": "Exists"}, {"key": "cluster-bridge.io/x"}],
        "containers": [
            {"name": "main", "image": "busybox:1", "envFrom": [{"configMapRef": {"name": "conf"}}]}
        ],
        "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "key"}}]}}],
    }
    metadata = {"labels": {"app": "web"}, "annotations": {"note": "x"}}
    return obj("Pod", "web", "home-1", metadata=metadata, spec=spec, status=status)


def remote_pod(home: Json) -> Json:
    pod = stands_for(home)
    pod["status"]["hostIP"] = "198.51.100.1"
    pod["spec"]["nodeName"] = "worker"
    pod["spec"]["tolerations"] = [home["spec"]["tolerations"][0], {"key": "added"}]
    pod["metadata"]["annotations"] |= {"cni.example/ip": "10.9.0.1", "by-hand": "yes"}
    return pod


@pytest.fixture
def home() -> list[Json]:
    """A pod, what it refers to, a Service, and what it does not refer to."""
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "nodePort": 30001}]}
    return [
        home_pod(),
        obj("ConfigMap", "conf", "home-2", data={"a": "1"}),
        obj("Secret", "key", "home-3", data={"a": "MQ=="}, type="Opaque"),
        obj("Service", "web", "home-4", spec=service),
        obj("ConfigMap", "other", "home-5", data={}),
        obj(
            "EndpointSlice",
            "web-1",
            "home-6",
            metadata={"labels": {"kubernetes.io/service-name": "web"}},
            endpoints=[
                {"addresses": ["10.1.0.1"], "conditions": {"ready": True}, "nodeName": "m1"},
                {"addresses": ["10.9.0.1"], "conditions": {"ready": True}, "nodeName": NODE},
            ],
        ),
    ]


@pytest.fixture
def remote(home: list[Json]) -> list[Json]:
    """All of it in the remote, and what others have there."""
    service = stands_for(home[3])
    service["spec"]["ports"] = [{"port": 80}]
    controllers = stands_for(home[3])
    controllers["kind"] = "EndpointSlice"
    controllers["metadata"]["labels"] |= {
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"
    }
    del controllers["metadata"]["annotations"]
    written = {"labels": OURS, "annotations": {"cluster-bridge.io/home-namespace": "shop"}}
    endpoints = stands_for(home[5])
    endpoints["endpoints"] = [{**home[5]["endpoints"][0], "nodeName": None}]
    namespace = obj("Namespace", "shop-h", "remote-n", metadata=written)
    del namespace["metadata"]["namespace"]
    return [
        remote_pod(home[0]),
        stands_for(home[1]),
        stands_for(home[2]),
        service,
        controllers,
        namespace,
        obj("ConfigMap", "theirs", "foreign-1", namespace="x", data={"a": "1"}),
        obj("Pod", "theirs", "foreign-2", namespace="x", spec={}, status={}),
        endpoints,
    ]


def audit(home: list[Json], remote: list[Json]) -> Iterator[Finding]:
    pods = [o for o in home if o["kind"] == "Pod" and o["spec"].get("nodeName") == NODE]
    mine = [o for o in remote if o["kind"] == "Pod" and o["metadata"].get("labels")]
    yield from check_pods(pods, mine, all_remote=remote, address=ADDRESS)
    yield from check_copies(home, remote, pods=pods, node=NODE)
    yield from check_namespaces(remote, pods=pods, node=NODE)


def test_nothing_is_found_where_all_is_well(home: list[Json], remote: list[Json]) -> None:
    assert list(audit(home, remote)) == []


Change = Callable[[list[Json], list[Json]], object]


def _set(*path: str | int, to: Any) -> Callable[[Json], None]:
    def change(target: Any) -> None:
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = to

    return change


def _pods(side: int, change: Callable[[Json], object]) -> Change:
    return lambda home, remote: change((home, remote)[side][0])


MAIN = ("status", "containerStatuses", 0)
META = "metadata"


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda h, r: r.pop(0), Kind.LOST, "no remote pod"),
        (lambda h, r: r.append(r[0]), Kind.DUPLICATED, "the remote has"),
        (lambda h, r: h.pop(0), Kind.LEAKED, "home has no pod"),
        (_pods(0, _set("spec", "containers", 0, "image", to="x:2")), Kind.DISAGREES, "image"),
        (_pods(0, _set(META, "labels", to={"app": "web", "b": "c"})), Kind.DISAGREES, "labels b"),
        (_pods(0, _set(META, "annotations", to={})), Kind.DISAGREES, "note: only in the remote"),
        (_pods(1, _set("spec", "tolerations", to=[])), Kind.DISAGREES, "toleration"),
        (_pods(1, _set(META, "deletionTimestamp", to="x")), Kind.DISAGREES, "in the remote alone"),
        (_pods(0, _set(META, "deletionTimestamp", to="x")), Kind.DISAGREES, "at home alone"),
        (_pods(1, _set(META, "name", to="x")), Kind.DISAGREES, "has the name x"),
        (_pods(0, _set("status", "phase", to="Failed")), Kind.DISAGREES, "ended at home"),
        (_pods(1, _set("status", "phase", to="Failed")), Kind.DISAGREES, "phase: home Running"),
        (_pods(1, _set("status", "podIP", to="x")), Kind.DISAGREES, "podIP"),
        (_pods(1, _set(*MAIN, "restartCount", to=2)), Kind.DISAGREES, "restartCount"),
        (_pods(1, _set(*MAIN, "state", to={"waiting": {}})), Kind.DISAGREES, "state"),
        (_pods(1, _set("status", "containerStatuses", to=[])), Kind.DISAGREES, "containerStatuses"),
        (_pods(1, _set("status", "conditions", to=[])), Kind.DISAGREES, "condition Ready"),
        (_pods(0, _set("status", "hostIP", to="198.51.100.1")), Kind.DISAGREES, "hostIP"),
        (_pods(0, _set("status", "startTime", to=None)), Kind.DISAGREES, "startTime"),
        (lambda h, r: r.pop(1), Kind.LOST, "it has no copy"),
        (lambda h, r: r.pop(2), Kind.LOST, "it has no copy"),
        (lambda h, r: r.pop(3), Kind.LOST, "it has no copy"),
        (lambda h, r: h.pop(3), Kind.LEAKED, "home no longer has it"),
        (lambda h, r: r.append(stands_for(h[4])), Kind.LEAKED, "no pod refers to it"),
        (lambda h, r: h[1]["data"].update(b="2"), Kind.DISAGREES, "data differs"),
        (lambda h, r: h[2].update(type="x"), Kind.DISAGREES, "type differs"),
        (lambda h, r: h[1][META].update(uid="home-9"), Kind.DISAGREES, "has the home UID home-2"),
        (lambda h, r: h[3]["spec"].update(selector={"app": "web", "x": "y"}), None, ""),
        (
            lambda h, r: h.append(obj("Service", "more", "home-7", spec={"selector": {"x": "y"}})),
            Kind.LOST,
            "it has no copy",
        ),
        (lambda h, r: r.pop(8), Kind.LOST, "endpoints are not in the remote"),
        (lambda h, r: r[8].update(endpoints=[]), Kind.DISAGREES, "endpoints: home"),
        (
            lambda h, r: h[5]["endpoints"][0].update(conditions={"ready": False}),
            Kind.DISAGREES,
            "endpoints: home",
        ),
        (lambda h, r: h.pop(5), Kind.LEAKED, "home no longer has it"),
        (lambda h, r: h[3]["spec"].update(ports=[{"port": 81}]), Kind.DISAGREES, "ports"),
        (lambda h, r: h[3]["spec"].update(clusterIP="None"), Kind.DISAGREES, "headless"),
        (lambda h, r: r[3]["spec"]["ports"][0].update(nodePort=1), Kind.DISAGREES, "node port"),
        (lambda h, r: r[5][META].pop("labels"), Kind.LEAKED, "an unmanaged namespace"),
        (
            lambda h, r: r.append(
                obj("Secret", "t", "t", namespace="shop-h", metadata={"labels": OURS})
            ),
            Kind.LEAKED,
            "no home object or pod",
        ),
    ],
)
def test_what_is_wrong_is_found(
    home: list[Json], remote: list[Json], change: Change, kind: Kind | None, words: str
) -> None:
    change(home, remote)
    found = list(audit(home, remote))
    if kind is None:
        assert not any(f.kind is Kind.LOST for f in found)
        return
    assert any(f.kind is kind and words in f.detail for f in found), found


def test_a_pod_that_ended_needs_nothing_in_the_remote(home: list[Json]) -> None:
    home[0]["status"]["phase"] = "Succeeded"
    assert list(audit(home, [])) == []


def test_a_pod_that_ended_is_not_changed_any_more(home: list[Json], remote: list[Json]) -> None:
    home[0]["metadata"]["labels"]["late"] = "x"
    assert list(audit(home, remote)) != []
    for side in (home, remote):
        side[0]["status"]["phase"] = "Failed"
    assert list(audit(home, remote)) == []


def test_only_an_ended_pod_may_have_lost_its_address(home: list[Json], remote: list[Json]) -> None:
    """A restarted kubelet reverts it."""
    for pod in (home[0], remote[0]):
        pod["status"]["phase"] = "Failed"
    del remote[0]["status"]["podIP"]
    assert list(audit(home, remote)) == []
    remote[0]["status"]["podIP"] = "10.9.0.2"
    assert [it.kind for it in audit(home, remote)] == [Kind.DISAGREES]
    for pod in (home[0], remote[0]):
        pod["status"]["phase"] = "Running"
    del remote[0]["status"]["podIP"]
    assert [it.kind for it in audit(home, remote)] == [Kind.DISAGREES]


def test_a_pod_that_is_deleted_and_gone_in_the_remote_is_stuck(home: list[Json]) -> None:
    home[0]["metadata"]["deletionTimestamp"] = "x"
    (found,) = audit(home, [])
    assert found.kind is Kind.STUCK


def test_a_namespace_of_ours_goes_when_nothing_is_in_it(
    home: list[Json], remote: list[Json]
) -> None:
    (found,) = audit(home[1:], [remote[5], *remote[6:8]])
    assert (found.kind, found.subject) == (Kind.LEAKED, "Namespace shop-h")
    kept = obj("ConfigMap", "theirs", "foreign-3", namespace="shop-h", data={})
    assert list(audit(home[1:], [remote[5], kept])) == []


def test_a_pod_of_a_daemon_set_is_not_missed(home: list[Json]) -> None:
    home[0]["metadata"]["ownerReferences"] = [{"kind": "DaemonSet"}]
    home[0]["status"] = {"phase": "Running", "reason": "DaemonSetSkipped"}
    assert list(audit(home, [])) == []


@pytest.mark.parametrize("mutated", [True, False])
def test_requests_differ_only_where_the_remotes_admission_changed_them(
    home: list[Json], remote: list[Json], mutated: bool
) -> None:
    changed = next(it for it in remote if it["kind"] == "Pod")
    changed["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "7m"}}
    if mutated:
        changed["metadata"]["annotations"]["faults.example.com/mutated"] = "yes"
    found = [it.detail for it in audit(home, remote)]
    assert any("resources" in detail for detail in found) is not mutated


def test_a_daemon_sets_pod_without_a_remote_pod_states_that_it_is_skipped(home: list[Json]) -> None:
    home[0]["metadata"]["ownerReferences"] = [{"kind": "DaemonSet"}]
    home[0]["status"] = {"phase": "Running", "podIP": "10.0.0.9"}
    found = {it.detail for it in audit(home, [])}
    assert found == {
        "is Running without a remote pod, and not skipped",
        "has 10.0.0.9, and no remote pod",
    }


@pytest.mark.parametrize("is_true", [True, False])
def test_a_clash_is_believed_only_where_something_is_in_the_way(
    home: list[Json], remote: list[Json], is_true: bool
) -> None:
    home[0]["status"] = {
        "phase": "Pending",
        "reason": "RemoteClash",
        "message": "pod shop-h/web exists in the remote cluster and is not this bridge's",
    }
    remote.pop(0)
    if is_true:
        remote.append(obj("Pod", "web", "foreign-3", namespace="shop-h", spec={}, status={}))
    kinds = {found.kind for found in audit(home, remote)}
    assert (Kind.LOST in kinds) is not is_true


def test_a_token_of_a_service_account_may_not_leave_home(
    home: list[Json], remote: list[Json]
) -> None:
    for side in (home, remote):
        side[2]["type"] = "kubernetes.io/service-account-token"
    (found,) = audit(home, remote)
    assert (found.kind, found.detail) == (Kind.LEAKED, "a service account token was copied")


def test_what_a_pod_refers_to_is_found_at_any_depth() -> None:
    pod = home_pod()
    pod["spec"] |= {
        "imagePullSecrets": [{"name": "pull"}],
        "ephemeralContainers": [
            {"env": [{"valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}]}
        ],
        "volumes": [
            {"secret": {"secretName": "vol"}},
            {"csi": {"nodePublishSecretRef": {"name": "csi"}}},
            {"configMap": {"name": "kube-root-ca.crt"}},
        ],
    }
    assert references(pod) == {
        ("ConfigMap", "shop", "conf"),
        *(("Secret", "shop", name) for name in ("pull", "env", "vol", "csi")),
    }


def _written(part: str = "") -> list[Json]:
    return [{"manager": "cluster-bridge", "subresource": part}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.pop(6), "was deleted"),
        (lambda r: r[6]["metadata"].update(uid="x"), "re-created"),
        (lambda r: r[6]["metadata"].update(resourceVersion="2"), "was written"),
        (lambda r: r[7]["metadata"].update(managedFields=_written()), "a write of the bridge"),
    ],
)
def test_what_is_done_to_others_is_found(
    remote: list[Json], change: Callable[[list[Json]], object], words: str
) -> None:
    before = snapshot(remote)
    assert list(check_unmanaged(before, remote)) == []
    change(remote)
    (found,) = check_unmanaged(before, remote)
    assert found.kind is Kind.UNMANAGED_TOUCHED
    assert words in found.detail


def test_objects_whose_deletion_began_earlier_may_vanish(remote: list[Json]) -> None:
    """Themselves, and those of a namespace: an earlier test's, for example."""
    earlier = {"name": "earlier", "uid": "ns", "resourceVersion": "1", "deletionTimestamp": "now"}
    contents = {"name": "it", "namespace": "earlier", "uid": "cm", "resourceVersion": "1"}
    ending = [
        {"kind": "Namespace", "metadata": earlier},
        {"kind": "ConfigMap", "metadata": contents},
    ]
    remote[6]["metadata"]["deletionTimestamp"] = "now"
    before = snapshot([*remote, *ending])
    del remote[6]
    assert list(check_unmanaged(before, remote)) == []


def test_kubelets_may_write_the_pods_of_others(remote: list[Json]) -> None:
    before = snapshot(remote)
    remote[7]["metadata"]["resourceVersion"] = "2"
    assert list(check_unmanaged(before, remote)) == []


def test_at_home_the_bridge_writes_the_status_of_pods_and_nothing_else(home: list[Json]) -> None:
    home[0]["metadata"]["managedFields"] = _written("status")
    elections = obj(
        "Namespace", "cluster-bridge", "ns", namespace="", metadata={"managedFields": _written()}
    )
    assert list(check_home([*home, elections])) == []
    home[0]["metadata"]["managedFields"] = _written()
    home[1]["metadata"]["managedFields"] = _written()
    assert len(list(check_home(home))) == 2


def _run(number: int, *, policy: str = "Never", phase: str = "Running") -> Json:
    pod = remote_pod(home_pod())
    pod["metadata"]["uid"] = f"remote-{number}"
    pod["spec"]["restartPolicy"] = policy
    pod["status"]["phase"] = phase
    pod["status"]["containerStatuses"][0]["containerID"] = f"containerd://{number}"
    return pod


def _history(*remote: Json, home: list[Json] | None = None) -> list[Finding]:
    history = History()
    for pod in remote:
        history.saw_remote(pod)
    for pod in home or ():
        history.saw_home(pod)
    return list(history.findings())


def test_a_pod_that_ran_once_is_no_finding() -> None:
    assert _history(_run(1), _run(1), _run(1, phase="Succeeded")) == []


def test_a_pod_that_may_run_again_may() -> None:
    assert _history(_run(1, policy="Always"), _run(2, policy="Always")) == []


def test_a_pod_that_was_made_and_run_twice_is_found() -> None:
    assert {found.kind for found in _history(_run(1), _run(2))} == {Kind.DUPLICATED, Kind.TWICE_RUN}


def test_a_pod_that_was_never_let_run_does_not_count() -> None:
    held = remote_pod(home_pod())
    held["spec"] |= {"restartPolicy": "Never", "schedulingGates": [{"name": GATE}]}
    held["metadata"]["uid"] = "remote-1"
    del held["status"]["containerStatuses"]
    assert _history(held, _run(2)) == []


def test_a_container_that_was_started_again_in_its_pod_is_found() -> None:
    again = _run(2)
    again["metadata"]["uid"] = "remote-1"
    assert [found.kind for found in _history(_run(1), again)] == [Kind.TWICE_RUN]
    restarted = _run(1)
    restarted["status"]["containerStatuses"][0]["restartCount"] = 1
    assert [found.kind for found in _history(restarted)] == [Kind.TWICE_RUN]


def _home(phase: str, reason: str = "") -> Json:
    pod = home_pod()
    pod["status"] |= {"phase": phase, "reason": reason}
    return pod


def test_an_end_that_is_taken_back_is_found() -> None:
    (found,) = _history(home=[_home("Succeeded"), _home("Running")])
    assert (found.kind, found.detail) == (
        Kind.DISAGREES,
        "an end was reversed: Succeeded, then Running",
    )


def test_an_end_that_is_not_that_of_the_remote_is_found() -> None:
    (found,) = _history(_run(1, phase="Succeeded"), home=[_home("Failed", "RemotePodLost")])
    assert found.kind is Kind.DISAGREES
    assert "RemotePodLost" in found.detail


def test_the_end_of_a_pod_that_was_deleted_there_may_be_unknown() -> None:
    """It was gone before a bridge that was away came back."""
    removed = _run(1, phase="Succeeded")
    removed["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    assert _history(removed, home=[_home("Failed", "RemotePodLost")]) == []
    (found,) = _history(removed, home=[_home("Failed", "Evicted")])
    assert found.kind is Kind.DISAGREES


def test_unobserved_period_is_reported() -> None:
    history = History()
    history.saw_home(_home("Running"))
    history.saw_remote(_run(1))
    (found,) = history.unseen([home_pod(), _run(1), _run(2)])
    assert found.kind is Kind.UNSEEN
