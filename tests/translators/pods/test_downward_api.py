"""Downward API files with all labels or annotations."""

from __future__ import annotations

import copy
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakeapi.patching import strategic
from tests.translators.golden import POLICY
from translators.object_accessors import Object
from translators.pods import remote_pod, update
from translators.pods.downward_api import ANNOTATIONS_MAX, format_map

_TEXT = "metadata.annotations['cluster-bridge.io/{}-file']"


def _home(field: str, value: dict[str, str], *, projected: bool = False) -> Object:
    items: Object = {"items": [{"path": "p", "fieldRef": {"fieldPath": f"metadata.{field}"}}]}
    source: Object = {"downwardAPI": items}
    volume = {"name": "me", **({"projected": {"sources": [source]}} if projected else source)}
    meta = {"name": "web", "namespace": "shop", "uid": "home-1", field: value}
    return {"metadata": meta, "spec": {"containers": [{"name": "main"}], "volumes": [volume]}}


def _path(remote: Object) -> str:
    [volume] = remote["spec"]["volumes"]
    downward = volume.get("downwardAPI") or volume["projected"]["sources"][0]["downwardAPI"]
    return str(downward["items"][0]["fieldRef"]["fieldPath"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, ""),
        ({"b": "2", "a": "", "B": "1"}, 'B="1"\na=""\nb="2"'),
        ({"a": 'x"y\\z'}, 'a="x\\"y\\\\z"'),
        ({"a": "\a\b\f\n\r\t\v\0\x1b\x7f"}, r'a="\a\b\f\n\r\t\v\x00\x1b\x7f"'),
        ({"a": "é日🚀 "}, 'a="é日🚀 "'),
        ({"a": "\u00a0\u200b\u2028\ufeff\U000e0001"}, r'a="\u00a0\u200b\u2028\ufeff\U000e0001"'),
    ],
    ids=["none", "sorted", "quotes", "control", "print", "what does not print"],
)
def test_map_has_the_kubelets_format(value: dict[str, str], text: str) -> None:
    """The expected texts are those of Go's strconv.Quote."""
    assert format_map(value) == text


@given(
    st.dictionaries(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1), st.text())
)
def test_map_has_one_line_per_key(value: dict[str, str]) -> None:
    lines = format_map(value).splitlines() if value else []

    assert [line.partition("=")[0] for line in lines] == sorted(value)


@pytest.mark.parametrize("projected", [False, True], ids=["volume", "projected"])
@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_file_contains_only_keys_of_the_home_pod(field: str, projected: bool) -> None:
    last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    home = _home(field, {"a": "1", "cluster-bridge.io/x": "1", **last}, projected=projected)
    remote = remote_pod.translate_pod(home, POLICY).pod
    annotation = f"cluster-bridge.io/{field}-file"

    assert _path(remote) == _TEXT.format(field)
    assert remote["metadata"]["annotations"][annotation] == (
        'a="1"\nkubectl.kubernetes.io/last-applied-configuration="{}"'
    )
    changed = _home(field, {"b": "2"}, projected=projected)
    [change] = update.pod_patches(changed, remote, POLICY)
    patched = strategic(remote, change.patch)
    assert patched["metadata"]["annotations"][annotation] == 'b="2"'
    assert update.pod_patches(changed, patched, POLICY) == []


def test_pod_without_map_files_has_no_text() -> None:
    home = _home("labels", {})
    home["spec"]["volumes"][0]["downwardAPI"]["items"][0]["fieldRef"] = {
        "fieldPath": "metadata.name"
    }
    remote = remote_pod.translate_pod(home, POLICY).pod

    assert _path(remote) == "metadata.name"
    assert not [key for key in remote["metadata"]["annotations"] if key.endswith("-file")]


def test_oversized_text_is_dropped_with_a_message() -> None:
    large = {"a": "x" * (ANNOTATIONS_MAX // 2)}
    translated = remote_pod.translate_pod(_home("annotations", large), POLICY)

    assert _path(translated.pod) == "metadata.annotations"
    assert "cluster-bridge.io/annotations-file" not in translated.pod["metadata"]["annotations"]
    [dropped] = translated.dropped
    assert dropped.field == "spec.volumes[me].downwardAPI.items[0].fieldRef.fieldPath"
    assert update.pod_patches(_home("annotations", large), translated.pod, POLICY) == []


def test_text_that_becomes_oversized_is_not_updated() -> None:
    remote = remote_pod.translate_pod(_home("annotations", {"a": "1"}), POLICY).pod
    large = {"a": "x" * (ANNOTATIONS_MAX // 2)}
    [change] = update.pod_patches(_home("annotations", large), remote, POLICY)

    assert change.patch == {"metadata": {"annotations": large}}


@pytest.mark.parametrize("projected", [False, True], ids=["volume", "projected"])
@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_file_of_a_dropped_key_has_the_value_of_home(field: str, projected: bool) -> None:
    """Istio's key is not copied to the remote pod."""
    home = _home(field, {"istio.io/rev": "one", "a": "1"}, projected=projected)
    [volume] = home["spec"]["volumes"]
    downward = volume.get("downwardAPI") or volume["projected"]["sources"][0]["downwardAPI"]
    reference = downward["items"][0]["fieldRef"]
    reference["fieldPath"] = f"metadata.{field}['istio.io/rev']"
    remote = remote_pod.translate_pod(home, POLICY).pod
    meta = remote["metadata"]

    assert "istio.io/rev" not in (meta.get(field) or {})
    key = _path(remote).removeprefix("metadata.annotations['").removesuffix("']")
    assert meta["annotations"][key] == "one"
    assert update.pod_patches(home, remote, POLICY) == []

    changed = copy.deepcopy(home)
    changed["metadata"][field]["istio.io/rev"] = "two"
    [change] = update.pod_patches(changed, remote, POLICY)
    assert change.patch["metadata"]["annotations"] == {key: "two"}


def test_file_of_a_kept_key_reads_the_key() -> None:
    home = _home("labels", {"istio.io/rev": "one", "app": "web"})
    reference = home["spec"]["volumes"][0]["downwardAPI"]["items"][0]["fieldRef"]
    reference["fieldPath"] = "metadata.labels['app']"
    remote = remote_pod.translate_pod(home, POLICY).pod

    assert _path(remote) == "metadata.labels['app']"


def test_variable_of_a_dropped_key_is_not_expanded() -> None:
    """A kubelet expands `$(HOME)` in a value, and `$$` to `$`."""
    key, value = "sidecar.istio.io/args", "$(PATH) $$ 100$"
    variable = {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
    home = _home("annotations", {key: value})
    home["spec"]["containers"][0]["env"] = [{"name": "ARGS", "valueFrom": variable}]
    remote = remote_pod.translate_pod(home, POLICY).pod

    [found] = remote["spec"]["containers"][0]["env"]
    assert found == {"name": "ARGS", "value": "$$(PATH) $$$$ 100$$"}


@pytest.mark.real_time
def test_time_does_not_grow_with_containers_times_dropped_annotations() -> None:
    home = _home("annotations", {f"sidecar.istio.io/{n}": "" for n in range(10_000)})
    env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}}]
    home["spec"]["containers"] = [{"name": f"c{n}", "env": env} for n in range(16_000)]
    began = time.thread_time()
    translated = remote_pod.translate_pod(home, POLICY).pod
    assert time.thread_time() - began < 2
    containers = translated["spec"]["containers"]
    assert all(container["env"] == [{"name": "A", "value": "default"}] for container in containers)
