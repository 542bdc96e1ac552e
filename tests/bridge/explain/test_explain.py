"""`bridge explain` with two fake clusters: the facts and the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.base.command_error import PreflightError
from bridge.explain import json_report, text_report
from bridge.explain.cluster_lookup import ExplainSettings, PodFacts, look_up_pod, pod_of_manifest
from bridge.node import join_record, node_object
from sync.kube.api_resources import (
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    Object,
)
from tests import objects
from tests.bridge.prepared_namespaces import limit_to_roles, prepare
from tests.bridge.running_join import running_join
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import FakeApi
from tests.fakeapi.faults import Fault
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.sync.engine_harness import NODE
from translators.object_accessors import uid_of
from translators.ownership_labels import LABEL_VIRTUAL, owner_labels
from translators.translation_options import HostPort, Policy
from translators.virtual_node_identity import Identity, home_id_from_uid

pytestmark = pytest.mark.usefixtures("soon")

#: The value of a Secret, which must not appear in any output.
HIDDEN = "Y29ycmVjdC1ob3JzZQ=="
THERE = "default-h"


class Looked:
    """Two clusters with a virtual node, and the settings for a lookup."""

    def __init__(self, two: Clusters) -> None:
        self.two = two
        self.settings = ExplainSettings(two.settings.home, None, "default")

    def node(
        self, name: str = NODE, /, *, cpu: str = "4", tier: str = "burst", **annotations: str
    ) -> None:
        """A Node as the bridge registers it, and its remote."""
        policy = Policy(self.identity(), "10.0.0.1", node_selector={"pool": "a"})
        remote = self.two.settings.remote
        node = objects.node(name) | {"spec": {}}
        node["metadata"] |= {
            "labels": {
                node_object.LABEL_REMOTE: home_id_from_uid(_uid(self.two.remote)),
                LABEL_VIRTUAL: "true",
                "tier": tier,
            },
            "annotations": {
                node_object.ANNOTATION_KUBECONFIG: str(remote.path),
                node_object.ANNOTATION_HOME_NAME: "h",
                join_record.ANNOTATION_OPTIONS: join_record.encode_policy(policy),
                **annotations,
            },
        }
        amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True"}
        node["status"] = {"allocatable": amounts, "conditions": [ready]}
        self.two.home.put(node)
        self.two.home.update(NODES, name, {"spec": {"taints": None}})

    def identity(self) -> Identity:
        return Identity(home_id=home_id_from_uid(_uid(self.two.home)), home_name="h", node=NODE)

    def namespace(self, *, owned: bool = True) -> None:
        labels = owner_labels(self.identity()) if owned else {}
        meta = {"name": THERE, "labels": labels}
        self.two.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.two.remote.put(objects.service_account("default", THERE))

    async def look(self, name: str = "web", **changes: Any) -> PodFacts:
        settings = replace(self.settings, name=name, **changes)
        return await look_up_pod(settings)

    async def answer(self, name: str = "web", **changes: Any) -> Object:
        return json_report.build_report(await self.look(name, **changes))


def _uid(api: FakeApi) -> str:
    return uid_of(api.get(NAMESPACES, "kube-system"))


@pytest.fixture
def looked(two: Clusters) -> Looked:
    """Two clusters, before any lookup."""
    found = Looked(two)
    found.node()
    return found


def _using(name: str = "web", /, **spec: object) -> Object:
    """A pod with all kinds of dependencies."""
    pod = objects.pod(name)
    pod["spec"]["containers"][0]["env"] = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "one"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
    ]
    pod["spec"] |= spec
    return pod


def _asking(cpu: str, **spec: object) -> Object:
    pod = _using(**spec)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return pod


def _service(namespace: str) -> Object:
    meta = {"name": "front", "namespace": namespace}
    spec = {"ports": [{"port": 80}], "selector": {"app": "front"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def _named(answer: Object, kind: str) -> Object:
    found: Object = next(it for it in answer["references"] if it["kind"] == kind)
    return found


async def test_pod_that_can_run(looked: Looked) -> None:
    looked.two.home.put(_using())
    looked.two.home.put(objects.config_map("conf", data={"one": "1"}))
    looked.two.home.put(objects.secret("key", data={"k": HIDDEN}))
    answer = await looked.answer()
    assert answer["state"] == "WouldRun"
    assert answer["remote"]["namespace"] == THERE
    assert answer["node"]["options"]["nodeSelector"] == {"pool": "a"}
    assert {(it["kind"], it["home"]) for it in answer["references"]} == {
        ("ConfigMap", "found"),
        ("Secret", "found"),
        ("ServiceAccount", "found"),
    }
    assert answer["notLookedAt"] == []
    assert looked.two.writes() == []


async def test_secret_values_are_not_in_the_report(looked: Looked) -> None:
    looked.two.home.put(_using())
    looked.two.home.put(objects.secret("key", data={"k": HIDDEN}))
    facts = await looked.look()
    answer = json_report.build_report(facts)
    made = json_report.translated_pod(facts)
    assert _named(answer, "Secret")["missingKeys"] == []
    for text in (repr(facts), json.dumps(answer), text_report.render_report(answer), repr(made)):
        assert HIDDEN not in text
        assert "correct-horse" not in text


async def test_missing_dependencies_are_reported_with_keys(looked: Looked) -> None:
    looked.two.home.put(_using())
    looked.two.home.put(objects.config_map("conf", data={"two": "2"}))
    answer = await looked.answer()
    assert _named(answer, "ConfigMap")["missingKeys"] == ["one"]
    assert [it["why"] for it in answer["waiting"]] == [
        "ConfigMap conf lacks the key one",
        "Secret key is missing at home",
    ]


async def test_summary_names_the_obstacle(looked: Looked) -> None:
    looked.two.home.put(_using(nodeSelector={"tier": "other"}))
    answer = await looked.answer()
    assert answer["state"] == "NotPlaced"
    assert answer["placement"]["obstacles"] == [
        {"field": "spec.nodeSelector[tier]", "why": "requires 'other'; the node has 'burst'"}
    ]
    assert text_report.render_report(answer).startswith(answer["summary"])


async def test_rejection_by_the_bridge_is_reported(looked: Looked) -> None:
    looked.two.home.put(_using(hostNetwork=True))
    answer = await looked.answer()
    assert answer["state"] == "Refused"
    assert [(it["by"], it["field"]) for it in answer["refusals"]] == [
        ("bridge", "spec.hostNetwork")
    ]


async def test_unmanaged_namespace_is_a_rejection(looked: Looked) -> None:
    looked.two.home.put(_using())
    looked.namespace(owned=False)
    answer = await looked.answer()
    assert answer["state"] == "Refused"
    assert "kubectl annotate namespace default-h" in answer["refusals"][0]["why"]


async def test_namespace_that_is_not_prepared_is_a_rejection(looked: Looked) -> None:
    policy = Policy(looked.identity(), "10.0.0.1", remote_namespaces=("another",))
    looked.node(**{join_record.ANNOTATION_OPTIONS: join_record.encode_policy(policy)})
    looked.two.home.put(_using())
    answer = await looked.answer()
    assert answer["state"] == "Refused"
    assert "bridge rbac remote --namespace default-h" in answer["refusals"][0]["why"]


async def test_reads_of_the_whole_remote_are_left_out_where_not_granted(looked: Looked) -> None:
    two = looked.two
    prepare(two, THERE)
    policy = Policy(looked.identity(), "10.0.0.1", remote_namespaces=(THERE,))
    uid = uid_of(two.remote.get(NAMESPACES, THERE))
    record = join_record.encode_policy(policy, remote_ids=[home_id_from_uid(uid)])
    looked.node(**{join_record.ANNOTATION_OPTIONS: record})
    limit_to_roles(two, two.but(remote_namespaces=(THERE,)))
    two.home.put(_using())
    answer = await looked.answer()
    assert answer["remote"]["podExists"] is False
    assert "remote: no list of all nodes: not granted" in answer["notLookedAt"]
    assert not [entry.path for entry in two.remote.log if entry.code == [403]]


async def test_rejection_by_the_remote_is_found_by_a_dry_run(looked: Looked) -> None:
    looked.two.home.put(_using())
    looked.namespace()
    message = "violates PodSecurity restricted"
    looked.two.remote.fail(Fault("POST", f"*/namespaces/{THERE}/pods", code=403, message=message))
    answer = await looked.answer()
    assert answer["state"] == "Refused"
    assert [(it["by"], it["why"]) for it in answer["refusals"]] == [("remote", message)]
    assert [it.query.get("dryRun") for it in looked.two.writes()] == ["All"]


async def test_message_of_the_remote_adds_no_line_to_the_text(looked: Looked) -> None:
    looked.two.home.put(_using(nodeName=NODE))
    looked.namespace()
    message = "denied\n\nreferences:\n  forged"
    looked.two.remote.fail(Fault("POST", f"*/{THERE}/pods", code=403, message=message, times=None))
    answer = await looked.answer()
    assert answer["refusals"][0]["why"] == message
    text = text_report.render_report(answer)
    assert "denied\\n\\nreferences" in text
    assert "  forged" not in text.splitlines()


async def test_pod_security_level_and_what_decides_it_are_reported(looked: Looked) -> None:
    looked.two.home.put(_using())
    answer = await looked.answer()
    assert "default-h of the remote enforces baseline" in answer["podSecurity"]
    assert "kubectl label namespace default" in answer["podSecurity"]
    assert f"Pod Security:\n  {answer['podSecurity']}" in text_report.render_report(answer)

    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    looked.two.home.update(NAMESPACES, "default", {"metadata": {"labels": labels}})
    looked.namespace()
    message = 'violates PodSecurity "restricted:latest": seccompProfile'
    looked.two.remote.fail(Fault("POST", f"*/namespaces/{THERE}/pods", code=403, message=message))
    answer = await looked.answer()
    [rejection] = answer["refusals"]
    assert rejection["why"] == f"{message}; {answer['podSecurity']}"
    assert "enforces restricted: home's namespace default has the label" in answer["podSecurity"]


async def test_pod_security_of_a_namespace_that_was_handed_over(looked: Looked) -> None:
    looked.two.home.put(_using())
    looked.namespace(owned=False)
    assert "was handed over with no level" in (await looked.answer())["podSecurity"]


async def test_join_options_of_the_node_decide_the_translation(looked: Looked) -> None:
    looked.two.home.put(_using())
    made = json_report.translated_pod(await looked.look())
    assert made is not None
    assert made.pod["spec"]["nodeSelector"] == {"pool": "a"}
    assert made.pod["metadata"]["namespace"] == THERE


async def test_missing_join_options_are_noted(two: Clusters) -> None:
    looked = Looked(two)
    looked.node(**{join_record.ANNOTATION_OPTIONS: "nonsense"})
    two.home.put(_using())
    answer = await looked.answer()
    assert answer["node"]["tellsOptions"] is False
    assert any("older bridge" in note for note in answer["notLookedAt"])


async def test_report_without_the_remote_notes_it(two: Clusters, tmp_path: Path) -> None:
    looked = Looked(two)
    looked.node(**{node_object.ANNOTATION_KUBECONFIG: str(tmp_path / "elsewhere.yaml")})
    two.home.put(_using(priorityClassName="high"))
    answer = await looked.answer()
    assert any(
        "elsewhere.yaml" in note and "--kubeconfig" in note for note in answer["notLookedAt"]
    )
    assert "server" not in answer["remote"]
    assert _named(answer, "Secret")["remote"] == "-"


async def test_wrong_remote_cluster_is_rejected(looked: Looked) -> None:
    looked.two.home.put(_using())
    with pytest.raises(PreflightError, match="is not the remote cluster of node"):
        await looked.look(remote=looked.two.settings.home)


async def test_unknown_pod_or_node_is_an_error_with_a_next_step(looked: Looked) -> None:
    with pytest.raises(PreflightError, match="kubectl get pods"):
        await looked.look("unknown")
    looked.two.home.put(_using())
    with pytest.raises(PreflightError, match=f"use one of: {NODE}"):
        await looked.look(node="other")


async def test_home_without_a_virtual_node_is_an_error(two: Clusters) -> None:
    looked = Looked(two)
    two.home.put(_using())
    facts = await looked.look()
    assert json_report.build_report(facts)["state"] == "NoNode"
    assert json_report.translated_pod(facts) is None
    assert "bridge join" in text_report.render_report(json_report.build_report(facts))


async def test_pod_on_a_node_of_home_is_elsewhere(looked: Looked) -> None:
    looked.two.home.put(objects.pod("web", node="worker"))
    answer = await looked.answer()
    assert (answer["state"], answer["pod"]["node"]) == ("Elsewhere", "worker")


async def test_pod_template_is_admitted_by_a_dry_run(looked: Looked) -> None:
    template = pod_of_manifest(
        {
            "kind": "CronJob",
            "metadata": {"name": "tick", "namespace": "default"},
            "spec": {"jobTemplate": {"spec": {"template": {"spec": objects.pod("x")["spec"]}}}},
        }
    )
    answer = await looked.answer("", manifest=template)
    assert answer["pod"]["stored"] is False
    assert answer["pod"]["name"].startswith("tick-")
    assert answer["state"] == "WouldRun"
    assert [it.query.get("dryRun") for it in looked.two.writes()] == ["All"]


async def test_pod_that_home_finds_invalid_is_an_error(looked: Looked) -> None:
    fault = Fault(
        "POST", "*/namespaces/default/pods", code=422, message="spec.volumes[0]: Required"
    )
    looked.two.home.fail(fault)
    with pytest.raises(PreflightError, match="Required"):
        await looked.answer("", manifest=pod_of_manifest(objects.pod("x")))


async def test_daemonset_template_is_rejected(looked: Looked) -> None:
    template = pod_of_manifest(
        {
            "kind": "DaemonSet",
            "metadata": {"name": "log"},
            "spec": {"template": {"spec": objects.pod("x")["spec"]}},
        }
    )
    answer = await looked.answer("", manifest=template)
    assert answer["state"] == "Refused"
    assert "--daemonsets=run" in answer["refusals"][0]["why"]


def _claim(phase: str = "Pending", **spec: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": spec,
        "status": {"phase": phase},
    }


def _storing() -> Object:
    pod = objects.pod("web")
    claim = {"claimName": "data"}
    pod["spec"]["volumes"] = [{"name": "files", "persistentVolumeClaim": claim}]
    return pod


@pytest.mark.parametrize(
    ("claim", "why"),
    [(None, "data is missing at home"), (_claim(), "data is not bound at home")],
    ids=["missing", "unbound"],
)
async def test_missing_or_unbound_claim_is_an_obstacle(
    looked: Looked, claim: Object | None, why: str
) -> None:
    if claim is not None:
        looked.two.home.put(claim)
    for changes in ({"name": "", "manifest": _storing()}, {"name": "web"}):
        answer = await looked.answer(**changes)
        assert answer["state"] == "NotPlaced"
        [obstacle] = answer["placement"]["obstacles"]
        assert obstacle["field"] == "spec.volumes[files]"
        assert why in obstacle["why"]
        assert why in answer["summary"]
        if not changes["name"]:
            looked.two.home.put(_storing())


async def test_unbound_claim_of_a_waiting_class_is_no_obstacle(looked: Looked) -> None:
    looked.two.home.put(_storing())
    looked.two.home.put(_claim(storageClassName="later"))
    looked.two.home.put(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "later"},
            "provisioner": "example.com/disks",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    answer = await looked.answer()
    assert answer["state"] == "WouldWait"
    assert any("PersistentVolumeClaim data is not bound" in it["why"] for it in answer["waiting"])


async def test_provisioned_claim_names_its_data_in_the_remote(looked: Looked) -> None:
    looked.node(**{join_record.ANNOTATION_OPTIONS: '{"storage":"provision"}'})
    looked.two.home.put(_storing())
    looked.two.home.put(_claim(storageClassName="burst"))
    looked.two.home.put(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "burst"},
            "provisioner": "volumes.cluster-bridge.io",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    claim = _named(await looked.answer(), "PersistentVolumeClaim")
    assert claim["becomes"] == "a new volume in the remote, once a node is selected"
    bound = looked.two.home.put(_claim("Bound", volumeName="pvc-1"))
    remote_id = home_id_from_uid(_uid(looked.two.remote))
    namespace = (await looked.answer())["remote"]["namespace"]
    handle = f"{remote_id}/{namespace}/data-0123"
    looked.two.home.put(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "pvc-1"},
            "spec": {
                "claimRef": {"namespace": "default", "name": "data", "uid": uid_of(bound)},
                "csi": {"driver": "volumes.cluster-bridge.io", "volumeHandle": handle},
            },
        }
    )
    meta = {"name": "data-0123", "namespace": namespace}
    looked.two.remote.put(PERSISTENT_VOLUME_CLAIMS.manifest(meta, spec={}))
    claim = _named(await looked.answer(), "PersistentVolumeClaim")
    assert claim["becomes"] == f"the claim {namespace}/data-0123 with its data: Pending"
    made = json_report.translated_pod(await looked.look())
    assert made is not None
    volume = made.pod["spec"]["volumes"][0]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-0123"}


async def test_claim_bound_to_a_volume_of_other_nodes_is_an_obstacle(looked: Looked) -> None:
    looked.two.home.put(_storing())
    looked.two.home.put(_claim("Bound", volumeName="disk"))
    term = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["home"]}]}
    affinity = {"required": {"nodeSelectorTerms": [term]}}
    volume: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": {"nodeAffinity": affinity},
    }
    looked.two.home.put(volume)
    assert "only other nodes can use" in (await looked.answer())["summary"]
    term["matchExpressions"][0]["values"] = ["burst"]
    looked.two.home.update(PERSISTENT_VOLUMES, "disk", {"spec": {"nodeAffinity": affinity}})
    assert (await looked.answer())["state"] != "NotPlaced"


async def test_node_that_fits_is_chosen(looked: Looked) -> None:
    """The first node by name is too small."""
    looked.node("also", cpu="100m")
    looked.two.home.put(_asking("1"))
    answer = await looked.answer()
    assert answer["node"]["name"] == NODE
    assert [(it["name"], it["possible"]) for it in answer["nodes"]] == [
        (NODE, True),
        ("also", False),
    ]
    assert "also: resources.requests[cpu]" in text_report.render_report(answer)


async def test_selected_node_is_chosen_before_others(looked: Looked) -> None:
    """The selected node has more obstacles than the other."""
    looked.node("also", cpu="0", tier="named")
    looked.two.home.update(NODES, "also", {"spec": {"unschedulable": True}})
    looked.two.home.put(_asking("1", nodeSelector={"tier": "named"}))
    answer = await looked.answer()
    assert answer["node"]["name"] == "also"
    fields = [it["field"] for it in answer["placement"]["obstacles"]]
    assert fields == ["node.spec.unschedulable", "resources.requests[cpu]"]
    assert answer["nodes"][1]["obstacles"][0]["field"] == "spec.nodeSelector[tier]"


async def test_cordoned_remote_is_named_as_the_cause(looked: Looked) -> None:
    message = (
        "no node of the remote cluster takes new pods (1 cordoned); running pods are unaffected"
    )
    ready = {"type": "Ready", "status": "True", "reason": "NoSchedulableNodes", "message": message}
    nothing = {"cpu": "0", "memory": "0", "pods": "0"}
    status = {"conditions": [ready], "allocatable": nothing}
    looked.two.home.update(NODES, NODE, {"status": status})
    looked.two.home.put(_using())
    answer = await looked.answer()
    assert answer["state"] == "NotPlaced"
    assert answer["placement"]["obstacles"][0] == {"field": "node.status", "why": message}
    assert "1 cordoned" in answer["summary"]


async def test_existing_copies_are_found(looked: Looked) -> None:
    looked.two.home.put(_using())
    looked.two.home.put(objects.config_map("conf", data={"one": "1"}))
    looked.two.home.put(objects.secret("key", data={"k": HIDDEN}))
    looked.two.home.put(_service("default"))
    looked.namespace()
    answer = await looked.answer()
    assert (_named(answer, "ConfigMap")["remote"], _named(answer, "Secret")["remote"]) == ("-", "-")
    for there in (objects.config_map("conf", THERE, data={"one": "1"}), _service(THERE)):
        there["metadata"]["labels"] = owner_labels(looked.identity())
        looked.two.remote.put(there)
    looked.two.remote.put(objects.secret("key", THERE))  # unmanaged
    answer = await looked.answer()
    assert (_named(answer, "ConfigMap")["remote"], _named(answer, "Secret")["remote"]) == (
        "found",
        "-",
    )
    assert [(it["name"], it["remote"]) for it in answer["services"]] == [("front", "found")]


async def test_summary_of_a_rejection_names_the_field(looked: Looked) -> None:
    looked.two.home.put(_using(hostNetwork=True))
    assert "spec.hostNetwork: " in (await looked.answer())["summary"]


async def test_unbound_pod_is_not_rejected_for_its_size(looked: Looked) -> None:
    looked.two.home.put(_asking("4k"))
    looked.two.remote.update(NODES, "worker", {"metadata": {"labels": {"pool": "a"}}})
    answer = await looked.answer()
    assert answer["state"] == "NotPlaced"
    assert answer["refusals"] == []
    assert "rejected" not in answer["summary"]
    looked.two.home.update(PODS, "web", {"spec": {"nodeName": NODE}}, "default")
    assert (await looked.answer())["state"] == "Refused"


async def test_namespace_defaults_to_that_of_homes_context(looked: Looked) -> None:
    path = looked.two.settings.home.path
    assert path is not None
    write(path, kubeconfig(looked.two.home.url, namespace="shop", context="home-context"))
    looked.two.home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    looked.two.home.put(objects.pod("web", "shop"))
    assert (await looked.answer(namespace=""))["pod"]["namespace"] == "shop"
    with pytest.raises(PreflightError, match="Pod default/web not found"):
        await looked.answer(namespace="default")


def test_object_without_a_pod_template_is_rejected() -> None:
    assert pod_of_manifest({"kind": "Service", "spec": {}}) is None
    assert pod_of_manifest({"kind": "Deployment", "spec": {"template": {}}}) is None


async def test_explained_pod_equals_the_created_pod(two: Clusters) -> None:
    """Field by field, the bridge creates the pod that was explained."""
    two.home.put(objects.config_map("conf", data={"one": "1"}))
    two.home.put(objects.secret("key", data={"k": HIDDEN}))
    settings = ExplainSettings(two.settings.home, None, "default", "web")
    async with running_join(two):
        two.home.put(_using(nodeName=NODE))
        await two.remote.until(lambda: two.remote.find(PODS, "web", THERE) is not None)
        facts = await look_up_pod(settings)
        made = json_report.translated_pod(facts)
        answer = json_report.build_report(facts)
        there = two.remote.get(PODS, "web", THERE)
    assert made is not None
    assert made.pod["metadata"]["annotations"] == there["metadata"]["annotations"]
    assert made.pod["metadata"]["labels"] == there["metadata"]["labels"]
    for field, value in made.pod["spec"].items():
        assert there["spec"][field] == value, field
    assert answer["remote"]["podExists"] is True
    assert answer["state"] == "Waiting"
    assert [it["path"] for it in answer["differences"] if not it["rule"]] == []


def test_recorded_join_options_round_trip() -> None:
    identity = Identity(
        home_id="0" * 16, home_name="h", node="burst", namespace_template="{namespace}"
    )
    policy = Policy(
        identity,
        "10.0.0.1",
        network="none",
        daemonsets="run",
        service_accounts="remote",
        home_api=HostPort("10.0.0.9", 6443),
        node_selector={"a": "b"},
        unschedulable_timeout=7.5,
        remote_namespaces=("shop-h",),
    )
    node: Object = {
        "metadata": {
            "name": "burst",
            "annotations": {
                node_object.ANNOTATION_HOME_NAME: "h",
                join_record.ANNOTATION_OPTIONS: join_record.encode_policy(policy),
            },
        },
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    }
    assert join_record.read_policy(node, "0" * 16) == (policy, True)


@pytest.mark.parametrize("text", ["", "no json", "[]", "null"])
def test_invalid_join_options_are_defaults(text: str) -> None:
    node: Object = {
        "metadata": {"name": "burst", "annotations": {join_record.ANNOTATION_OPTIONS: text}}
    }
    policy, known = join_record.read_policy(node, "f" * 16)
    assert not known
    assert policy == Policy(Identity("f" * 16, "ffffffff", "burst"), "")


async def test_report_names_the_scheduler_and_the_offloading_of_the_namespace(
    looked: Looked,
) -> None:
    home = looked.two.home
    home.put(_using())
    assert (await looked.answer())["decidedBy"] == "home's scheduler"
    home.put(
        NAMESPACES.manifest(
            {
                "name": "default",
                "labels": {"cluster-bridge.io/offload": "remote-only"},
                "annotations": {"cluster-bridge.io/offload-node-selector": "tier=burst"},
            }
        )
    )
    answer = await looked.answer()
    assert answer["decidedBy"] == (
        "home's scheduler and offloading: namespace default is offloaded remote-only to nodes with "
        "tier=burst (bridge offload)"
    )
    assert f"  decided by {answer['decidedBy']}\n" in text_report.render_report(answer)
