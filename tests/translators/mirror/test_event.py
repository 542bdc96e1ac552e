"""Translation of Events beyond the golden files: names, messages and progress."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given

from tests.translators.strategies import dns_labels
from translators.merge_patch import merge_patch
from translators.mirror import event
from translators.object_accessors import HomeNamespace, HomeUid, Object, name_of
from translators.ownership_labels import Origin
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
ORIGIN = Origin(HomeNamespace("shop"), "web", HomeUid("home-uid"))


def mirrored(message: str = "", **fields: object) -> Object:
    """An event of the remote about the pod ``shop-berlin/web``."""
    about = {"kind": "Pod", "namespace": "shop-berlin", "name": "web", "uid": "there"}
    return {
        "metadata": {"name": "web.1", "namespace": "shop-berlin", "uid": "event-uid"},
        "involvedObject": about,
        "message": message,
        **fields,
    }


@pytest.mark.parametrize(
    ("message", "translated"),
    [
        ("assigned shop-berlin/web to worker", "assigned shop/web to worker"),
        ("ends with shop-berlin/web.", "ends with shop/web."),
        ('pod "shop-berlin/web": no', 'pod "shop/web": no'),
        ("in pod web_shop-berlin(there)", "in pod web_shop(home-uid)"),
        ("of another: shop-berlin/web-1", "of another: shop-berlin/web-1"),
        ("of another: shop-berlin/web.1", "of another: shop-berlin/web.1"),
        ("of another: web_shop-berlin(else)", "of another: web_shop-berlin(else)"),
        ("an image: registry/shop-berlin/web", "an image: registry/shop-berlin/web"),
        ("a longer one: my-shop-berlin/web", "a longer one: my-shop-berlin/web"),
    ],
)
def test_pod_name_in_message_is_translated(message: str, translated: str) -> None:
    assert event.translate_event(mirrored(message), ORIGIN, IDENTITY)["message"] == translated


def test_related_pod_is_translated() -> None:
    remote = mirrored(related={"namespace": "shop-berlin", "name": "web", "uid": "there"})
    related = event.translate_event(remote, ORIGIN, IDENTITY)["related"]
    assert related == {"namespace": "shop", "name": "web", "uid": "home-uid"}
    foreign = {"kind": "Node", "name": "worker", "uid": "n"}
    assert event.translate_event(mirrored(related=foreign), ORIGIN, IDENTITY)["related"] == foreign


def test_unknown_fields_are_kept_and_the_input_is_not_modified() -> None:
    remote = mirrored("shop-berlin/web", note={"a": 1})
    before = copy.deepcopy(remote)
    assert event.translate_event(event.compact(remote), ORIGIN, IDENTITY)["note"] == {"a": 1}
    assert remote == before


def test_translated_message_is_truncated_to_the_limit() -> None:
    long = Origin(HomeNamespace("a-longer-namespace"), "web", HomeUid("u"))
    message = "shop-berlin/web " + "x" * 1008
    for more in ({"eventTime": "2030-01-01T00:00:00.000000Z"}, {}):
        new = event.translate_event(mirrored(message, **more), long, IDENTITY)
        assert len(new["message"]) == event.MESSAGE_MAX


def test_large_event_is_cut_to_the_limits_of_the_api() -> None:
    """API servers accept no longer texts in new Events, and store at most 1.5 MiB."""
    large = "x" * 2**20
    huge = {
        "metadata": {"name": "e", "uid": "e", "annotations": {"a": large}},
        **dict.fromkeys(("message", "reason", "action", "type"), large),
        **dict.fromkeys(("reportingComponent", "reportingInstance", "unknown"), large),
        "source": {"component": large, "host": large},
        "series": {"component": large, "host": large},
        "related": {"name": large, "uid": "u"},
        "involvedObject": {"name": large, "uid": "p", "fieldPath": large},
        "unknown": {str(number): large for number in range(1000)},
        "note": "short",
    }
    kept = event.compact(huge)
    assert len(kept["message"]) == event.MESSAGE_MAX
    assert all(len(kept[key]) == event.TEXT_MAX for key in ("reason", "action"))
    assert kept["note"] == "short"
    assert len(str(kept)) < 8192


def test_progress_fields_ignore_null() -> None:
    stored = {"count": 1, "message": "m", "series": None, "lastTimestamp": None, "reason": "R"}
    later = {"count": 2, "message": "m", "reason": "R"}
    assert merge_patch(event.progress_fields(stored), event.progress_fields(later)) == {"count": 2}
    assert merge_patch(event.progress_fields(later), event.progress_fields(later)) == {}


@given(dns_labels, dns_labels)
def test_name_depends_only_on_the_remote_event(one: str, other: str) -> None:
    def name(uid: str) -> str:
        remote = {"metadata": {"uid": uid}, "involvedObject": {"name": "web"}}
        return event.home_event_name(remote)

    assert (name(one) == name(other)) == (one == other)
    translated = event.translate_event(mirrored(), ORIGIN, IDENTITY)
    assert name_of(translated) == event.home_event_name(mirrored())
