"""Computes the differences between a home pod and its remote pod, with the rule that causes each.

A rule is looked up first in `RULES`, which covers single fields that are added, renamed or removed,
then in the table of `translators.pods.field_rules`. A difference without a rule has ``rule`` "".

Paths and locations are those of `translators.field_paths`. List items with names are compared by
name, others by position with a sequence alignment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal

from translators.field_paths import LIST_KEYS, FieldMessage, items_by_key
from translators.object_accessors import Object
from translators.ownership_labels import is_bridge_key
from translators.pods import dropped_metadata, field_rules, scheduling_fields

Change = Literal["added", "removed", "changed"]

#: Maps with arbitrary keys; a rule applies to all of them.
_MAPS = frozenset({"metadata.labels", "metadata.annotations", "spec.nodeSelector", "spec.overhead"})
#: Maps for which only `RULES` has reasons.
_ONLY_IN_RULES = frozenset({"metadata.labels", "metadata.annotations"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs between the two objects."""

    path: str
    location: str
    change: Change
    before: Any = None
    after: Any = None
    rule: str = ""
    """The path of the rule; "" if no rule explains the difference."""
    reason: str = ""
    unsupported: bool = False
    """Whether the bridge drops the field although the pod's owner specified it (FieldDropped)."""


@dataclass(frozen=True, slots=True)
class DifferenceRule:
    """The reason why a field differs that the table of fields keeps or translates."""

    path: str
    changes: str
    """The changes that the rule explains, separated by spaces."""
    why: str
    when: Callable[[str, Any], bool] = lambda _key, _value: True
    """Called with the key (or item name) and the value that was added or removed."""


def _is_bridge_key(key: str, _: Any) -> bool:
    return is_bridge_key(key)


def _tolerates_condition(key: str, value: Any) -> bool:
    """Whether a toleration of a node condition was added, or what distinguishes it from one without
    a key."""
    if isinstance(value, dict):
        return value.get("key") in scheduling_fields.CONDITION_TAINTS
    return key in ("key", "effect", "tolerationSeconds")


_APPLIED = "home's scheduler has applied it; it does not describe the remote's nodes"
_MERGED = "home's API server has already merged them into the selector"
_RESTRICTED = "the virtual node stands only for nodes with this label (--node-selector)"
_MAPPED = "the names of the mapped namespaces"
_UNKNOWN = "labels of home's namespaces do not exist in the remote"
_TERM = "spec.affinity.podAffinity."
_REQUIRED = f"{_TERM}requiredDuringSchedulingIgnoredDuringExecution[]"
_PREFERRED = f"{_TERM}preferredDuringSchedulingIgnoredDuringExecution[]"
_SOURCES = "spec.volumes[].projected.sources[]"

RULES: tuple[DifferenceRule, ...] = (
    DifferenceRule("metadata.namespace", "changed", "the mapped namespace (--namespace-template)"),
    DifferenceRule(
        "metadata.labels", "added", "identify the home and the virtual node", _is_bridge_key
    ),
    DifferenceRule(
        "metadata.labels",
        "removed changed",
        "labels of the bridge belong to the home object",
        _is_bridge_key,
    ),
    DifferenceRule(
        "metadata.annotations",
        "added",
        "identify the home pod, and record what was last applied",
        _is_bridge_key,
    ),
    DifferenceRule(
        "metadata.annotations",
        "removed changed",
        "annotations of the bridge are not copied",
        _is_bridge_key,
    ),
    DifferenceRule(
        "metadata.annotations",
        "removed",
        "kubectl's last-applied configuration is not copied",
        lambda key, _: key == "kubectl.kubernetes.io/last-applied-configuration",
    ),
    *(
        DifferenceRule(
            f"metadata.{field}",
            "removed",
            "acts on nodes, networks or identities of the remote (--pod-metadata)",
            lambda key, _: dropped_metadata.is_in_table(key),
        )
        for field in ("labels", "annotations")
    ),
    DifferenceRule(
        "spec.schedulingGates[]",
        "added",
        "blocks scheduling until home records that the pod may run; it must never run twice",
    ),
    DifferenceRule(
        "spec.ephemeralContainers", "removed", "added after the creation: a new pod cannot have any"
    ),
    DifferenceRule("spec.nodeSelector", "added", _RESTRICTED),
    DifferenceRule("spec.nodeSelector", "removed changed", _APPLIED),
    DifferenceRule("spec.affinity.nodeAffinity.**", "added", _RESTRICTED),
    DifferenceRule("spec.affinity.nodeAffinity.**", "removed changed", _APPLIED),
    *(
        DifferenceRule(f"{term}.{key}", "removed changed", _MERGED)
        for term in ("spec.topologySpreadConstraints[]", _REQUIRED, f"{_PREFERRED}.podAffinityTerm")
        for key in ("matchLabelKeys", "mismatchLabelKeys")
    ),
    *(
        reason
        for term in (_REQUIRED, f"{_PREFERRED}.podAffinityTerm")
        for reason in (
            DifferenceRule(f"{term}.namespaces.**", "added removed changed", _MAPPED),
            DifferenceRule(f"{term}.namespaceSelector.**", "added changed", _MAPPED),
            DifferenceRule(f"{term}.namespaceSelector.**", "removed", _UNKNOWN),
        )
    ),
    DifferenceRule(_REQUIRED, "removed", _UNKNOWN),
    DifferenceRule(_PREFERRED, "removed", _UNKNOWN),
    DifferenceRule(
        "spec.tolerations[]",
        "removed",
        "tolerates the taint of virtual nodes, which do not exist in the remote",
    ),
    DifferenceRule(
        "spec.tolerations[].**",
        "added",
        "tolerates a condition of nodes, in place of every taint (--control-plane-nodes)",
        _tolerates_condition,
    ),
    DifferenceRule(
        "spec.automountServiceAccountToken",
        "added changed",
        "controls whether the remote adds its own token (--service-accounts)",
    ),
    DifferenceRule(
        "spec.serviceAccountName",
        "added changed",
        "the service account of that name in the remote (--service-accounts remote)",
    ),
    DifferenceRule(
        "spec.priorityClassName",
        "removed",
        "the remote has no such PriorityClass; the default priority applies",
    ),
    DifferenceRule(
        "spec.containers[].env[]",
        "added",
        "the address of home's API server, which issued the pod's token",
        lambda key, _: key.startswith("KUBERNETES_"),
    ),
    DifferenceRule(
        "spec.containers[].env[].value",
        "added",
        "the value at home, because the identity is home's",
    ),
    DifferenceRule(
        "spec.volumes[]", "removed", "home's tokens are not copied (--service-accounts)"
    ),
    DifferenceRule(
        f"{_SOURCES}.secret", "added", "home's tokens and CA certificate, in one Secret"
    ),
    DifferenceRule(
        f"{_SOURCES}.configMap",
        "removed",
        "home's CA certificate is in the Secret with the token",
        lambda _, value: value.get("name") == "kube-root-ca.crt",
    ),
)


def find_differences(
    home: Object, remote: Object, dropped: Iterable[FieldMessage] = ()
) -> Iterator[Difference]:
    """All differences of ``remote`` from ``home``, in the order of the fields.

    ``dropped`` are the messages of the translation (`TranslatedPod.dropped`), which are more
    specific than the rules.
    """
    messages = {item.field: item.message for item in dropped}
    for difference in _compare(home, remote, "", ""):
        location = difference.location
        message = next(
            (
                text
                for field, text in messages.items()
                if _within(field, location) or _within(location, field)
            ),
            None,
        )
        if message and difference.change != "added":
            yield replace(difference, reason=message, unsupported=True)
        else:
            yield difference


def _within(inner: str, outer: str) -> bool:
    """Whether a location equals another one, or is inside it."""
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


# -- comparing -----------------------------------------------------------------------------


def _compare(before: Any, after: Any, path: str, location: str) -> Iterator[Difference]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            below, inner_location = _step(path, location, key)
            if key not in after:
                yield from _whole("removed", before[key], below, inner_location, key)
            elif key not in before:
                yield from _whole("added", after[key], below, inner_location, key)
            else:
                yield from _compare(before[key], after[key], below, inner_location)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _lists(before, after, path, location)
    else:
        rule, why = _rule(path, "changed", "", after)
        yield Difference(path, location, "changed", before, after, rule, why)


def _step(path: str, location: str, key: str) -> tuple[str, str]:
    if path in _MAPS:
        return path, f"{location}[{key}]"
    return f"{path}.{key}".removeprefix("."), f"{location}.{key}".removeprefix(".")


def _lists(before: list[Any], after: list[Any], path: str, location: str) -> Iterator[Difference]:
    key = LIST_KEYS.get(path.rpartition(".")[2], "name")
    old, new = items_by_key(before, key), items_by_key(after, key)
    if old is not None and new is not None:
        for name in [*old, *(name for name in new if name not in old)]:
            inner_location = f"{location}[{name}]"
            if name not in new:
                yield from _whole("removed", old[name], f"{path}[]", inner_location, name)
            elif name not in old:
                yield from _whole("added", new[name], f"{path}[]", inner_location, name)
            else:
                yield from _compare(old[name], new[name], f"{path}[]", inner_location)
        return
    texts = [[json.dumps(item, sort_keys=True) for item in items] for items in (before, after)]
    matcher = SequenceMatcher(None, texts[0], texts[1], autojunk=False)
    for _, begin, end, start, stop in matcher.get_opcodes():
        both = min(end - begin, stop - start)
        for number in range(both):
            inner_location = f"{location}[{begin + number}]"
            yield from _compare(
                before[begin + number], after[start + number], f"{path}[]", inner_location
            )
        for number in range(begin + both, end):
            yield from _whole("removed", before[number], f"{path}[]", f"{location}[{number}]", "")
        for number in range(start + both, stop):
            yield from _whole("added", after[number], f"{path}[]", f"{location}[{number}]", "")


def _whole(change: Change, value: Any, path: str, location: str, key: str) -> Iterator[Difference]:
    """A value that was added or removed, as a whole or in the parts that have rules."""
    parts: list[tuple[Any, str, str, str]] = []
    if isinstance(value, dict):
        parts = [(inner, *_step(path, location, name), name) for name, inner in value.items()]
    elif isinstance(value, list):
        names = [item.get("name") if isinstance(item, dict) else None for item in value]
        parts = [
            (item, f"{path}[]", f"{location}[{name or number}]", str(name or ""))
            for number, (item, name) in enumerate(zip(value, names, strict=True))
        ]
    rule, why = _rule(path, change, key, value)
    if parts and (not rule or (path in _MAPS and isinstance(value, dict))):
        for part in parts:
            yield from _whole(change, *part)
        return
    before, after = (value, None) if change == "removed" else (None, value)
    yield Difference(path, location, change, before, after, rule, why)


# -- rules ---------------------------------------------------------------------------------


def _rule(path: str, change: Change, key: str, value: Any) -> tuple[str, str]:
    """The path and reason of the rule; ("", "") without one."""
    usual = field_rules.table_path(path)
    for reason in RULES:
        top = reason.path.removesuffix(".**")
        covers = _within(usual, top) if top != reason.path else usual == top
        if covers and change in reason.changes.split() and reason.when(key, value):
            return reason.path, reason.why
    rule = field_rules.rule_for(path)
    # The table covers existing fields; `RULES` covers added ones.
    if rule is None or rule.decision == "kept" or change == "added" or path in _ONLY_IN_RULES:
        return "", ""
    return usual, rule.reason
