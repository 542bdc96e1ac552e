"""Labels and annotations of a home PVC reach the remote PVC, and those of the remote stay."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.translators.strategies import NESTED
from translators.merge_patch import merge_patch
from translators.object_accessors import Object
from translators.storage.followed_metadata import (
    ANNOTATION_FOLLOWED,
    metadata_patch,
    passed_metadata,
)
from translators.translation_options import PodMetadata, Policy
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
POLICY = Policy(IDENTITY, "10.20.0.5", storage="provision", remote_id="r1")


def _home(labels: dict[str, str] | None = None, **annotations: str) -> Object:
    return {"metadata": {"labels": labels or {}, "annotations": annotations}}


def _remote(home: Object, policy: Policy = POLICY) -> Object:
    return {"metadata": passed_metadata(home, policy)}


def _apply(remote: Object, patch: Object) -> Object:
    """The object after the merge patch."""
    meta = {**remote["metadata"]}
    for field, changes in (patch.get("metadata") or {}).items():
        values = {**meta.get(field, {}), **changes}
        meta[field] = {key: value for key, value in values.items() if value is not None}
    return {"metadata": meta}


def _followed(remote: Object, home: Object, policy: Policy = POLICY) -> Object:
    """The remote PVC's metadata after it followed, without the record. There is nothing left to
    follow."""
    after = _apply(remote, metadata_patch(home, remote, policy))
    assert metadata_patch(home, after, policy) == {}
    annotations = {**after["metadata"]["annotations"]}
    annotations.pop(ANNOTATION_FOLLOWED)
    return {"labels": after["metadata"]["labels"], "annotations": annotations}


def test_new_claim_has_nothing_to_follow() -> None:
    home = _home({"app": "db"}, schedule="daily")
    assert metadata_patch(home, _remote(home), POLICY) == {}


def test_added_changed_and_removed_keys_follow() -> None:
    remote = _remote(_home({"app": "db", "tier": "gold"}, schedule="daily", owner="x"))
    home = _home({"app": "web", "team": "a"}, owner="x", note="n")
    assert _followed(remote, home) == {
        "labels": {"app": "web", "team": "a"},
        "annotations": {"owner": "x", "note": "n"},
    }


def test_keys_of_the_remote_are_never_touched() -> None:
    remote = _remote(_home({"app": "db"}))
    remote["metadata"]["labels"]["zone"] = "a"
    remote["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes"
    for home in (_home({"app": "db", "zone": "b"}), _home({"zone": "a"}), _home()):
        found = _followed(remote, home)
        assert found["labels"]["zone"] == "a"
        assert found["annotations"] == {"pv.kubernetes.io/bind-completed": "yes"}
        assert ("app" in found["labels"]) == ("app" in home["metadata"]["labels"])


def test_value_that_the_remote_changed_belongs_to_it() -> None:
    remote = _remote(_home({"app": "db"}))
    remote["metadata"]["labels"]["app"] = "policy"
    assert metadata_patch(_home({"app": "db"}), remote, POLICY) == {}
    for home in (_home({"app": "web"}), _home()):
        assert _followed(remote, home)["labels"] == {"app": "policy"}


def test_key_that_the_remote_removed_returns_with_the_next_change_at_home() -> None:
    remote = _remote(_home({"app": "db"}))
    del remote["metadata"]["labels"]["app"]
    assert metadata_patch(_home({"app": "db"}), remote, POLICY) == {}
    assert _followed(remote, _home({"app": "web"}))["labels"] == {"app": "web"}


def test_keys_of_controllers_and_dropped_keys_are_not_passed() -> None:
    home = _home(
        {"app.kubernetes.io/name": "db", "eks.amazonaws.com/role": "admin"},
        **{
            "volume.kubernetes.io/selected-node": "burst",
            "k8s.v1.cni.cncf.io/networks": "storage",
            "cluster-bridge.io/remote-pvc": "other",
        },
    )
    expected = {"labels": {"app.kubernetes.io/name": "db"}, "annotations": {}}
    assert _followed(_remote(_home()), home) == expected
    assert _followed(_remote(home), home) == expected


def test_key_that_a_later_join_drops_stays_until_home_removes_it() -> None:
    remote = _remote(_home({"secret.example.com/a": "1"}))
    policy = replace(POLICY, pod_metadata=PodMetadata(drop=("secret.example.com/*",)))
    for value in ("1", "2"):
        labels = {"secret.example.com/a": value}
        assert metadata_patch(_home(labels), remote, policy) == {}
    assert _followed(remote, _home(), policy)["labels"] == {}


def test_claim_of_an_earlier_version_is_adopted() -> None:
    remote: Object = {"metadata": {"labels": {"app": "db", "own": "x"}, "annotations": {}}}
    home = _home({"app": "db"})
    adopted = _apply(remote, metadata_patch(home, remote, POLICY))
    assert _followed(adopted, _home())["labels"] == {"own": "x"}


def test_record_that_another_writer_damaged_removes_nothing() -> None:
    nested = (f'{{"labels": {{"app": {each}}}}}' for each in NESTED)
    for text in ("{", "[]", '{"labels": ["app"]}', *nested):
        remote = _remote(_home({"app": "db"}))
        remote["metadata"]["annotations"][ANNOTATION_FOLLOWED] = text
        assert _followed(remote, _home())["labels"] == {"app": "db"}


_VALUES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]))


@given(_VALUES, _VALUES, _VALUES)
def test_undisturbed_metadata_becomes_equal(
    first: dict[str, str], second: dict[str, str], foreign: dict[str, str]
) -> None:
    remote = _remote(_home(first))
    foreign = {f"remote/{key}": value for key, value in foreign.items()}
    remote["metadata"]["labels"] |= foreign
    found = _followed(remote, _home(second))["labels"]
    assert found == {**second, **foreign}
    assert not merge_patch(found, foreign)
