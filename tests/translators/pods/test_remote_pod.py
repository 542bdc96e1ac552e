"""Translation of pods, and updates of running ones."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakeapi.patching import strategic
from tests.translators.golden import ADDRESS, IDENTITY, POLICY, homes
from tests.translators.strategies import NESTED, json_values
from translators.object_accessors import Object
from translators.ownership_labels import ANNOTATION_CARRIED_RESOURCES
from translators.pods import last_applied_home_values, remote_pod, update
from translators.pods.scheduling_fields import CONDITION_TAINTS, CONTROL_PLANE_TAINTS
from translators.translation_options import ClusterReads, ControlPlaneNodes, Policy
from translators.virtual_node_identity import Identity

#: A home and a remote that call their namespaces the same.
_SAME = Identity(
    home_id="0123456789abcdef", home_name="berlin", node="burst", namespace_template="{namespace}"
)
_HOMES = {str(home["metadata"]["name"]): home for home in homes("pod")}


def _home(spec: Object, **meta: Any) -> Object:
    metadata = {"name": "web", "namespace": "shop", "uid": "home-1", **meta}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}], **spec}}


def _remote(home: Object, identity: Identity = IDENTITY) -> Object:
    return remote_pod.translate_pod(home, Policy(identity, ADDRESS, service_accounts="none")).pod


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _is(key: str, value: str) -> Object:
    """A node selector requirement: the label has this value."""
    return {"key": key, "operator": "In", "values": [value]}


def _required(*alternatives: Object) -> Object:
    """Node affinity that requires one of these terms."""
    terms = [{"matchExpressions": [it]} for it in alternatives]
    return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}


def _spec(spec: Object) -> Object:
    found: Object = _remote(_home(spec))["spec"]
    return found


@given(json_values)
def test_unknown_fields_are_kept(value: Any) -> None:
    new = {"future": value}
    when = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = {
        **new,
        "containers": [{"name": "main", "env": [{"name": "A", **new}], **new}],
        "initContainers": [{"name": "first", **new}],
        "volumes": [
            {"name": "a", **new},
            {"name": "b", "downwardAPI": {"items": [{"path": "p", **new}], **new}, **new},
            {"name": "c", "projected": {"sources": [new], **new}, **new},
        ],
        "affinity": {
            "podAffinity": {when: [{"topologyKey": "zone", "namespaces": [], **new}], **new},
            "nodeAffinity": new,
            **new,
        },
        "topologySpreadConstraints": [new],
        "tolerations": [{"key": "a", **new}],
        "securityContext": new,
    }
    home = {**_home(spec), **new}
    before = copy.deepcopy(home)
    remote = _remote(home)

    assert remote == {
        **new,
        "metadata": remote["metadata"],
        "spec": {**spec, "automountServiceAccountToken": False},
    }
    assert home == before


@pytest.mark.parametrize("name", _HOMES)
def test_translated_pod_can_be_translated_again(name: str) -> None:
    """A second translation only changes the ownership."""
    first = _remote(_HOMES[name], _SAME)
    stored = {**first, "metadata": {**first["metadata"], "uid": "remote-1", "namespace": "shop"}}
    again = _remote(stored, _SAME)

    assert again["spec"] == first["spec"]
    assert again["metadata"]["labels"] == first["metadata"]["labels"]
    assert again["metadata"]["annotations"] == {
        **first["metadata"]["annotations"],
        **last_applied_home_values.record_annotations(stored),
        "cluster-bridge.io/home-uid": "remote-1",
    }


def test_node_terms_are_dropped_if_one_matches_every_node() -> None:
    arch = {"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    terms = [{"matchExpressions": [arch, zone]}, {"matchExpressions": [zone]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    assert "affinity" not in _spec({"affinity": {"nodeAffinity": required}})


def test_unmerged_match_label_keys_are_kept() -> None:
    constraint = {"labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["hash"]}

    assert _spec({"topologySpreadConstraints": [constraint]})["topologySpreadConstraints"] == [
        constraint
    ]


def test_only_merged_match_label_keys_are_dropped() -> None:
    expressions = [{"key": "hash", "operator": "In", "values": ["1"]}]
    constraint = {
        "labelSelector": {"matchExpressions": expressions},
        "matchLabelKeys": ["hash", "other"],
    }

    assert _spec({"topologySpreadConstraints": [constraint]})["topologySpreadConstraints"] == [
        {"labelSelector": {"matchExpressions": expressions}, "matchLabelKeys": ["other"]}
    ]


def test_tolerations_of_the_bridges_taints_are_dropped() -> None:
    wide, ours = {"key": "a", "operator": "Exists"}, {"key": "cluster-bridge.io/virtual-node"}
    other = {"key": "cluster-bridge.io.example.com/x"}

    assert _spec({"tolerations": [wide, ours, other]})["tolerations"] == [wide, other]


_KEYS = (*CONTROL_PLANE_TAINTS, "node.kubernetes.io/not-ready", "example.com/gpu", "")
_tolerations = st.lists(
    st.fixed_dictionaries(
        {"operator": st.just("Exists")},
        optional={
            "key": st.sampled_from(_KEYS),
            "effect": st.sampled_from(["NoSchedule", "NoExecute"]),
        },
    ),
    max_size=5,
)


@given(_tolerations)
def test_no_toleration_reaches_the_control_plane(tolerations: list[Object]) -> None:
    """And a pod that tolerated a condition of nodes still does."""
    home = _home({"tolerations": tolerations})
    translated = remote_pod.translate_pod(home, POLICY)
    found = translated.pod["spec"].get("tolerations", [])

    def tolerates(candidates: list[Object], key: str, effect: str) -> bool:
        return any(
            it.get("key", "") in ("", key) and it.get("effect", effect) == effect
            for it in candidates
        )

    for effect in ("NoSchedule", "NoExecute"):
        assert not any(tolerates(found, key, effect) for key in CONTROL_PLANE_TAINTS)
        for key in CONDITION_TAINTS:
            assert tolerates(found, key, effect) == tolerates(tolerations, key, effect)
    changed = [it for it in tolerations if it.get("key", "") in (*CONTROL_PLANE_TAINTS, "")]
    dropped = [it for it in translated.dropped if it.field.startswith("spec.tolerations")]
    assert len(dropped) == len(changed)


@given(_tolerations)
def test_control_plane_is_reached_if_allowed(tolerations: list[Object]) -> None:
    policy = replace(POLICY, control_plane_nodes="allow")
    translated = remote_pod.translate_pod(_home({"tolerations": tolerations}), policy)

    assert translated.pod["spec"].get("tolerations", []) == tolerations
    assert translated.dropped == []


@pytest.mark.parametrize("now", ["deny", "allow"])
def test_running_pod_keeps_its_tolerations_if_the_option_changes(now: ControlPlaneNodes) -> None:
    """Also one that an older version created."""
    before: ControlPlaneNodes = "allow" if now == "deny" else "deny"
    home = _home({"tolerations": [{"operator": "Exists"}]})
    remote = remote_pod.translate_pod(home, replace(POLICY, control_plane_nodes=before)).pod

    policy = replace(POLICY, control_plane_nodes=now)
    assert update.pod_patches(home, remote, policy) == []


def _anti_affinity(term: Object) -> tuple[Object, list[str]]:
    """The translated term, {} if it was dropped, and the messages."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    home = _home({"affinity": {"podAntiAffinity": required}})
    translated = remote_pod.translate_pod(home, POLICY)
    found = translated.pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
    terms = found.get("requiredDuringSchedulingIgnoredDuringExecution", [{}])
    return terms[0], [item.field for item in translated.dropped]


_NAME = "kubernetes.io/metadata.name"
_HOME = {"cluster-bridge.io/home": IDENTITY.home_id}


@pytest.mark.parametrize(
    ("selector", "there"),
    [
        ({}, {"matchLabels": _HOME}),
        ({"matchLabels": {_NAME: "shop"}}, {"matchLabels": {_NAME: "shop-berlin"}}),
        (
            {"matchExpressions": [{"key": _NAME, "operator": "In", "values": ["a", "b"]}]},
            {
                "matchExpressions": [
                    {"key": _NAME, "operator": "In", "values": ["a-berlin", "b-berlin"]}
                ]
            },
        ),
        (
            {"matchExpressions": [{"key": _NAME, "operator": "NotIn", "values": ["a"]}]},
            {
                "matchLabels": _HOME,
                "matchExpressions": [{"key": _NAME, "operator": "NotIn", "values": ["a-berlin"]}],
            },
        ),
        (
            {"matchExpressions": [{"key": _NAME, "operator": "Exists"}]},
            {"matchLabels": _HOME, "matchExpressions": [{"key": _NAME, "operator": "Exists"}]},
        ),
    ],
    ids=["all", "one by name", "some by name", "all but one", "all that have a name"],
)
def test_namespace_selector_is_restricted_to_this_home(selector: Object, there: Object) -> None:
    term = {"topologyKey": "zone", "namespaceSelector": selector}

    assert _anti_affinity(term) == ({"topologyKey": "zone", "namespaceSelector": there}, [])


def test_term_with_namespace_labels_is_dropped_with_a_message() -> None:
    selector = {"matchLabels": {"team": "orders", _NAME: "shop"}}
    term = {"topologyKey": "zone", "namespaceSelector": selector}
    at = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"

    assert _anti_affinity(term) == ({}, [f"{at}.namespaceSelector"])


def test_term_with_listed_namespaces_is_kept_without_selector() -> None:
    selector = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    term = {"topologyKey": "zone", "namespaces": ["a"], "namespaceSelector": selector}

    assert _anti_affinity(term) == ({"topologyKey": "zone", "namespaces": ["a-berlin"]}, [])


@pytest.mark.parametrize(
    ("known", "carried"),
    [({"urgent"}, True), (set(), False), ({"system-urgent"}, False)],
    ids=["the remote has it", "the remote lacks it", "it is another's"],
)
def test_priority_class_is_kept_if_the_remote_has_it(known: set[str], carried: bool) -> None:
    home = _home({"priorityClassName": "urgent", "priority": 7, "preemptionPolicy": "Never"})
    translated = remote_pod.translate_pod(home, POLICY, priority_classes=frozenset(known))

    assert translated.pod["spec"].get("priorityClassName") == ("urgent" if carried else None)
    assert not {"priority", "preemptionPolicy"} & translated.pod["spec"].keys()
    assert [item.field for item in translated.dropped] == (
        [] if carried else ["spec.priorityClassName"]
    )


def test_priority_class_is_dropped_where_the_remotes_are_unknown() -> None:
    policy = replace(POLICY, cluster_reads=ClusterReads(priority_classes=False))
    translated = remote_pod.translate_pod(_home({"priorityClassName": "urgent"}), policy)

    assert "priorityClassName" not in translated.pod["spec"]
    assert "the bridge may not list the remote cluster's PriorityClasses" in str(
        translated.dropped[0]
    )


def test_system_priority_class_is_always_dropped() -> None:
    name = "system-node-critical"
    home = _home({"priorityClassName": name})
    translated = remote_pod.translate_pod(home, POLICY, priority_classes=frozenset({name}))

    assert "priorityClassName" not in translated.pod["spec"]
    assert "is reserved for cluster components" in str(translated.dropped[0])


def test_default_service_account() -> None:
    reference = {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}
    container = {"name": "main", "env": [{"name": "ACCOUNT", "valueFrom": reference}]}

    assert _spec({"containers": [container]})["containers"][0]["env"] == [
        {"name": "ACCOUNT", "value": "default"}
    ]


def test_token_volume_is_removed_from_every_container() -> None:
    sources = [{"serviceAccountToken": {"path": "token"}}]
    mount = {"name": "mine", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    kept = {"name": "data", "mountPath": "/data"}
    spec = _spec(
        {
            "volumes": [{"name": "mine", "projected": {"sources": sources}}],
            "containers": [{"name": "main", "volumeMounts": [kept, mount]}],
            "initContainers": [
                {"name": "first", "volumeMounts": [{"name": "mine", "mountPath": "/token"}]}
            ],
        }
    )

    assert "volumes" not in spec
    assert spec["containers"] == [{"name": "main", "volumeMounts": [kept]}]
    assert spec["initContainers"] == [{"name": "first"}]


def test_other_volume_at_the_token_path_is_kept() -> None:
    mount = {"name": "mine", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    volume = {"name": "mine", "secret": {"secretName": "mine"}}
    spec = _spec({"volumes": [volume], "containers": [{"name": "main", "volumeMounts": [mount]}]})

    assert spec["volumes"] == [volume]
    assert spec["containers"][0]["volumeMounts"] == [mount]


def test_field_message_text() -> None:
    volume = {"name": "vault", "projected": {"sources": [{"serviceAccountToken": {}}]}}
    policy = Policy(IDENTITY, ADDRESS, service_accounts="none")
    translated = remote_pod.translate_pod(_home({"volumes": [volume]}), policy)

    [dropped] = translated.dropped
    assert str(dropped) == (
        "spec.volumes[vault].projected.serviceAccountToken: "
        "tokens of home's service accounts stay at home"
    )
    assert translated.pod["spec"]["volumes"] == [{"name": "vault", "projected": {"sources": []}}]


def _update(home: Object, remote: Object) -> Object:
    """The patch of the pod itself, if it is the only one."""
    patches = _updates(home, remote)
    assert patches.keys() <= {""}
    found: Object = patches.get("", {})
    return found


def _updates(home: Object, remote: Object) -> dict[str, Object]:
    """The patches by subresource; once applied, there are none."""
    before = copy.deepcopy((home, remote))
    found = update.pod_patches(home, remote, POLICY)
    assert (home, remote) == before
    patched = remote
    for change in found:
        patched = strategic(patched, change.patch)
        if change.subresource == "resize":  # As `sync.pods.pod_update_writer` does.
            patched = strategic(patched, last_applied_home_values.record_resources_patch(home))
    assert update.pod_patches(home, patched, POLICY) == []
    return {change.subresource: change.patch for change in found}


@pytest.mark.parametrize("name", _HOMES)
def test_new_pod_needs_only_its_ephemeral_containers(name: str) -> None:
    wanted = "ephemeralContainers" in _HOMES[name]["spec"]

    assert _updates(_HOMES[name], _remote(_HOMES[name])).keys() == (
        {"ephemeralcontainers"} if wanted else set()
    )


def test_images_are_updated_in_containers_and_init_containers() -> None:
    old = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}
    new = {"containers": [{"name": "a", "image": "2"}, {"name": "b", "image": "1"}]}
    remote = _remote(_home({**old, "initContainers": [{"name": "c", "image": "1"}]}))
    home = _home({**new, "initContainers": [{"name": "c", "image": "2"}]})

    assert _update(home, remote)["spec"] == {
        "containers": [{"name": "a", "image": "2"}],
        "initContainers": [{"name": "c", "image": "2"}],
    }


def test_containers_added_by_the_remote_are_kept() -> None:
    added = {"name": "mesh", "image": "mesh:1"}
    remote = _remote(_home({"containers": [{"name": "a", "image": "1"}]}))
    remote["spec"]["containers"].append(added)
    home = _home({"containers": [{"name": "a", "image": "2"}]})

    patch = _update(home, remote)
    assert patch["spec"] == {"containers": [{"name": "a", "image": "2"}]}
    assert strategic(remote, patch)["spec"]["containers"] == [{"name": "a", "image": "2"}, added]


def test_image_changed_by_the_remote_is_kept_until_home_changes_it() -> None:
    home = _home({"containers": [{"name": "a", "image": "1"}]})
    remote = copy.deepcopy(_remote(home))
    remote["spec"]["containers"][0]["image"] = "mirror/1"

    assert _update(home, remote) == {}
    assert _update(_home({"containers": [{"name": "a", "image": "2"}]}), remote)["spec"] == {
        "containers": [{"name": "a", "image": "2"}]
    }


@pytest.mark.parametrize(
    ("has", "wanted", "patched"),
    [
        ([{"key": "a"}], [{"key": "a"}, {"key": "b"}], [{"key": "a"}, {"key": "b"}]),
        ([{"key": "a"}, {"key": "x"}], [{"key": "a"}], None),
        (
            [{"key": "a", "tolerationSeconds": 300}, {"key": "x"}],
            [{"key": "a", "tolerationSeconds": 60}],
            [{"key": "a", "tolerationSeconds": 60}, {"key": "x"}],
        ),
        (
            [{"key": "a", "tolerationSeconds": 300}],
            [{"key": "a", "tolerationSeconds": 300}, {"key": "a", "tolerationSeconds": 60}],
            [{"key": "a", "tolerationSeconds": 300}, {"key": "a", "tolerationSeconds": 60}],
        ),
        ([{"key": "a"}], [{"key": "a"}, {"key": "cluster-bridge.io/virtual-node"}], None),
    ],
    ids=[
        "one is added",
        "one that the remote added stays",
        "its time changes in its place",
        "the same for another time is another",
        "that of our taint is not added",
    ],
)
def test_tolerations_are_updated(
    has: list[Object], wanted: list[Object], patched: list[Object] | None
) -> None:
    patch = _update(_home({"tolerations": wanted}), _remote(_home({"tolerations": has})))

    assert patch.get("spec") == ({"tolerations": patched} if patched else None)


@pytest.mark.real_time
@pytest.mark.parametrize("added", [0, 1], ids=["nothing has changed", "one is added"])
def test_time_of_an_update_grows_linearly_with_the_tolerations(added: int) -> None:
    many: list[Object] = [{"key": f"a-{n}", "operator": "Exists"} for n in range(10_000 + added)]
    began = time.thread_time()
    remote = _remote(_home({"tolerations": many[:10_000]}))
    patch = _update(_home({"tolerations": many}), remote)
    assert time.thread_time() - began < 2
    assert patch.get("spec") == ({"tolerations": many} if added else None)


@pytest.mark.parametrize(
    ("has", "wanted", "patch"),
    [
        ({}, {"activeDeadlineSeconds": 60}, {"activeDeadlineSeconds": 60}),
        ({"activeDeadlineSeconds": 60}, {"activeDeadlineSeconds": 60}, None),
        ({"activeDeadlineSeconds": 60}, {}, None),
        ({"activeDeadlineSeconds": 60}, {"activeDeadlineSeconds": 90}, None),
    ],
    ids=[
        "one that was set is set",
        "the same is not",
        "one cannot be taken back",
        "the API takes no longer one",
    ],
)
def test_shorter_deadline_is_updated(has: Object, wanted: Object, patch: Object | None) -> None:
    assert _update(_home(wanted), _remote(_home(has))).get("spec") == patch


def test_tolerations_and_deadline_changed_by_admission_are_kept() -> None:
    home = _home({"tolerations": [{"key": "a"}, {"key": "b"}], "activeDeadlineSeconds": 60})
    remote = copy.deepcopy(_remote(home))
    remote["spec"] |= {"tolerations": [{"key": "a"}], "activeDeadlineSeconds": 90}

    assert _update(home, remote) == {}
    shorter = copy.deepcopy(home)
    shorter["spec"]["activeDeadlineSeconds"] = 30
    patch = _update(shorter, remote)
    assert patch["spec"] == {"activeDeadlineSeconds": 30}
    assert _update(shorter, strategic(remote, patch)) == {}


def test_labels_and_annotations_are_updated_and_the_remotes_kept() -> None:
    remote = _remote(_home({}, labels={"a": "1", "gone": "1"}, annotations={"note": "1"}))
    remote["metadata"]["annotations"]["cni.example.com/ip"] = "10.244.3.17"
    # A NetworkPolicy of the remote may select by what its admission has set.
    remote["metadata"]["labels"]["network-zone"] = "restricted"
    remote["metadata"]["annotations"]["policy"] = "theirs"
    home = _home({}, labels={"a": "2", "example.com/b": "1", "cluster-bridge.io/home": "no"})

    assert _update(home, remote) == {
        "metadata": {
            "labels": {"a": "2", "example.com/b": "1", "gone": None},
            "annotations": {
                "note": None,
                "cluster-bridge.io/carried-keys": '{"labels":["a","example.com/b"]}',
            },
        }
    }


@pytest.mark.parametrize("kept", [True, False], ids=["another stays", "it was the last"])
def test_key_with_a_domain_is_removed_if_it_came_from_home(kept: bool) -> None:
    others = {"example.com/b": "1"} if kept else {}
    remote = _remote(_home({}, labels={"example.com/a": "1", **others}))
    remote["metadata"]["labels"]["theirs.example.com/a"] = "1"
    record = '{"labels":["example.com/b"]}' if kept else None

    assert _update(_home({}, labels=others), remote) == {
        "metadata": {
            "labels": {"example.com/a": None},
            "annotations": {"cluster-bridge.io/carried-keys": record},
        }
    }


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", '{"labels": 7}', "null", *(f'{{"labels": {nested}}}' for nested in NESTED)],
)
def test_overwritten_record_of_keys_is_repaired(record: str) -> None:
    home = _home({}, labels={"example.com/a": "1"})
    remote = _remote(home)
    remote["metadata"]["annotations"]["cluster-bridge.io/carried-keys"] = record

    assert _update(home, remote)["metadata"]["annotations"].keys() == {
        "cluster-bridge.io/carried-keys"
    }


def test_ephemeral_containers_are_translated_and_added() -> None:
    env = [{"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]
    known, new = {"name": "first"}, {"name": "second", "env": env, "targetContainerName": "main"}
    remote = _remote(_home({}))
    remote["spec"]["ephemeralContainers"] = [known, {"name": "theirs"}]
    path = "metadata.annotations['cluster-bridge.io/home-namespace']"
    reference = {"apiVersion": "v1", "fieldPath": path}

    assert _updates(_home({"ephemeralContainers": [known, new]}), remote) == {
        "ephemeralcontainers": {
            "spec": {
                "ephemeralContainers": [
                    {**new, "env": [{"name": "NS", "valueFrom": {"fieldRef": reference}}]}
                ]
            }
        }
    }


def _sized(name: str, **resources: dict[str, str]) -> Object:
    return {"name": name, "resources": resources}


def test_resize_contains_only_differing_quantities() -> None:
    sidecar = {"restartPolicy": "Always"}
    home = _home(
        {
            "containers": [
                _sized("a", requests={"cpu": "0.5", "memory": "2Mi"}, limits={"cpu": "1"}),
                _sized("b", requests={"cpu": "1"}),
                {"name": "c"},
            ],
            "initContainers": [
                _sized("side", requests={"cpu": "2"}) | sidecar,
                _sized("once", requests={"cpu": "2"}),
            ],
        }
    )
    remote = _remote(home)
    # As created by an older bridge.
    del remote["metadata"]["annotations"][ANNOTATION_CARRIED_RESOURCES]
    limits = {"cpu": "900m", "ephemeral-storage": "1Gi"}
    remote["spec"]["containers"] = [
        _sized("a", requests={"cpu": "500m", "memory": "1Mi"}, limits=limits),
        _sized("b", requests={"cpu": "1000m", "memory": "1Gi"}, limits={"cpu": "2"}),
        _sized("c", limits={"cpu": "1"}),
        _sized("mesh", limits={"cpu": "1"}),
    ]
    remote["spec"]["initContainers"] = [
        _sized("side") | sidecar,
        _sized("once", requests={"cpu": "1"}),
    ]

    assert _updates(home, remote) == {
        "resize": {
            "spec": {
                "containers": [_sized("a", requests={"memory": "2Mi"}, limits={"cpu": "1"})],
                "initContainers": [_sized("side", requests={"cpu": "2"})],
            }
        }
    }


def _admitted(home: Object, **requests: str) -> Object:
    """The remote pod of ``home``, with requests changed by the remote's admission."""
    remote = copy.deepcopy(_remote(home))
    remote["spec"]["containers"][0]["resources"]["requests"] |= requests
    return remote


def _asking(cpu: str, memory: str = "1Mi") -> Object:
    return _home({"containers": [_sized("a", requests={"cpu": cpu, "memory": memory})]})


def test_requests_changed_by_admission_are_kept_until_home_changes_them() -> None:
    home = _asking("100m")
    remote = _admitted(home, cpu="250m", memory="512Mi")

    assert _updates(home, remote) == {}
    assert _updates(_asking("0.1"), remote).keys() <= {""}, "the same amount"
    resized = _updates(_asking("200m"), remote)
    assert resized == {
        "resize": {"spec": {"containers": [_sized("a", requests={"cpu": "200m"})]}}
    }, "memory is still the remote's decision, and nothing is recorded before the resize"


def test_resize_is_recorded_after_it_succeeds() -> None:
    first, second = _asking("100m"), _asking("200m")
    remote = _admitted(first, cpu="200m")

    record = _updates(second, remote)
    assert record.keys() == {""}
    assert record[""] == last_applied_home_values.record_resources_patch(second)
    remote = strategic(remote, record[""])
    assert _updates(second, remote) == {}
    assert _updates(first, remote)["resize"] == {
        "spec": {"containers": [_sized("a", requests={"cpu": "100m"})]}
    }


@pytest.mark.parametrize(
    ("generation", "classes", "follows"),
    [
        (1, ("Burstable", "Burstable"), False),
        (2, ("Burstable", "Burstable"), True),
        (2, ("Burstable", "Guaranteed"), False),
        (None, (None, None), True),
    ],
    ids=["unchanged at home", "changed at home", "of another QoS class", "unknown"],
)
def test_pod_without_a_record_is_resized_only_if_home_may_have_changed(
    generation: int | None, classes: tuple[str, str], follows: bool
) -> None:
    home = _asking("100m")
    remote = _admitted(home, cpu="250m")
    del remote["metadata"]["annotations"][ANNOTATION_CARRIED_RESOURCES]
    home["metadata"]["generation"] = generation
    for its, qos in zip((home, remote), classes, strict=True):
        its["status"] = {"qosClass": qos}

    found = _updates(home, remote)
    assert ("resize" in found) == follows
    if not follows:
        assert found[""] == last_applied_home_values.record_resources_patch(home)


@pytest.mark.parametrize(
    "record",
    [
        *("", "{", "[]", '{"a": 7}', '{"a": {"requests": {"cpu": 7}}}'),
        *(f'{{"a": {{"requests": {{"cpu": {nested}}}}}}}' for nested in NESTED),
    ],
)
def test_overwritten_record_of_resources_is_ignored(record: str) -> None:
    home = _asking("100m")
    remote = _remote(home)
    remote["metadata"]["annotations"][ANNOTATION_CARRIED_RESOURCES] = record

    assert _updates(home, remote) == {"": last_applied_home_values.record_resources_patch(home)}


_labels = st.dictionaries(st.sampled_from(["a", "b", "example.com/c"]), st.sampled_from("12"))


@given(_labels, _labels, st.sampled_from(["1", "2"]), st.sampled_from(["1", "2"]))
def test_update_is_idempotent(old: Object, new: Object, before: str, after: str) -> None:
    containers = [{"name": "main", "image": before}]
    remote = _remote(_home({"containers": containers}, labels=old))
    home = _home({"containers": [{"name": "main", "image": after}]}, labels=new)
    patched = strategic(remote, _update(home, remote))

    assert patched["spec"]["containers"][0]["image"] == after
    assert new.items() <= patched["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("spec", "selector", "terms"),
    [
        ({}, {"pool": "a", "kubernetes.io/arch": "amd64"}, None),
        (
            {"nodeSelector": {"kubernetes.io/arch": "amd64", "pool": "home's"}},
            {"pool": "a", "kubernetes.io/arch": "amd64"},
            None,
        ),
        (
            {"nodeSelector": {"kubernetes.io/arch": "arm64"}},
            {"pool": "a", "kubernetes.io/arch": "arm64"},
            [{"matchExpressions": [_is("kubernetes.io/arch", "amd64")]}],
        ),
        (
            {
                "nodeSelector": {"kubernetes.io/arch": "arm64"},
                "affinity": _required(_is("kubernetes.io/os", "a"), _is("kubernetes.io/os", "b")),
            },
            {"pool": "a", "kubernetes.io/arch": "arm64"},
            [
                {
                    "matchExpressions": [
                        _is("kubernetes.io/os", os),
                        _is("kubernetes.io/arch", "amd64"),
                    ]
                }
                for os in ("a", "b")
            ],
        ),
    ],
    ids=[
        "a pod that selects nothing",
        "one that agrees",
        "one that wants another machine waits",
        "whichever alternative it would take",
    ],
)
def test_pod_is_restricted_to_the_nodes_of_the_virtual_node(
    spec: Object, selector: dict[str, str], terms: list[Object] | None
) -> None:
    confined = Policy(
        IDENTITY,
        ADDRESS,
        service_accounts="none",
        node_selector={"pool": "a", "kubernetes.io/arch": "amd64"},
    )
    home = _home(spec)
    before = copy.deepcopy(home)
    found = remote_pod.translate_pod(home, confined).pod["spec"]

    assert found["nodeSelector"] == selector
    required = found.get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED, {})
    assert required.get("nodeSelectorTerms") == terms
    assert home == before
