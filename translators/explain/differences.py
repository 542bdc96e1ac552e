"""What is different in a remote pod from the home pod that it stands for, and by which rule.

`differences` compares the two objects as they are, and then looks for the rule: first in `REASONS`,
which knows what is added, renamed or taken out in one place, and then in the table of
`translators.pods.field_rules`. So a change that no rule explains is seen (``rule`` is ""), and a rule that
was forgotten cannot be made up. Tests hold every recorded pair and random pods against it.

Places are as in `translators.fieldpaths`: ``at`` for people (``spec.containers[web].env[A]``), ``path``
for the rule (``spec.containers[].env[]``). Items of lists that have names are compared by name;
others in their order, with those that went and came in between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal

from translators.fieldpaths import FieldMessage
from translators.identity import is_bridge_key
from translators.objects import Object
from translators.pods import field_rules

Change = Literal["added", "removed", "changed"]

#: Maps whose keys are people's: a rule is for all of them.
_MAPS = frozenset({"metadata.labels", "metadata.annotations", "spec.nodeSelector", "spec.overhead"})
#: Where each key has its own reason, or none.
_TOLD_ABOVE = frozenset({"metadata.labels", "metadata.annotations"})
#: What tells the items of a list apart where that is not their name.
_KEYS = {"volumeMounts": "mountPath"}
#: Begins a reason of the table: the module of `translators` that does it.
_MODULE = re.compile(r"^[a-z]+: ")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not the same on both sides."""

    path: str
    location: str
    change: Change
    before: Any = None
    after: Any = None
    rule: str = ""
    """The rule's path in its table; "" where no rule says that this may be."""
    reason: str = ""
    unsupported: bool = False
    """Whether the pod's owner asked for it and does not get it; it is told in an Event too."""


@dataclass(frozen=True, slots=True)
class DifferenceRule:
    """Why something that the table of fields calls carried or translated is different."""

    path: str
    changes: frozenset[Change]
    why: str
    when: Callable[[str, Any], bool] = lambda _key, _value: True
    """Of the key (or the item's name) and the value that came or went."""


def _reason(
    path: str, changes: str, why: str, when: Callable[[str, Any], bool] = lambda *_: True
) -> DifferenceRule:
    known: dict[str, Change] = {"added": "added", "removed": "removed", "changed": "changed"}
    return DifferenceRule(path, frozenset(known[word] for word in changes.split()), why, when)


def _ours(key: str, _: Any) -> bool:
    return is_bridge_key(key)


_OBEYED = "home's scheduler has obeyed it; of the remote's nodes it says nothing"
_MERGED = "home's API server has written them into the selector already"
_CONFINED = "the virtual node stands for the remote's nodes with this label alone (--node-selector)"
_NAMED = "the remote's names of these namespaces"
_UNKNOWN = "labels of home's namespaces are not in the remote"
_TERM = "spec.affinity.podAffinity."
_REQUIRED = f"{_TERM}requiredDuringSchedulingIgnoredDuringExecution[]"
_PREFERRED = f"{_TERM}preferredDuringSchedulingIgnoredDuringExecution[]"
_SOURCES = "spec.volumes[].projected.sources[]"

REASONS: tuple[DifferenceRule, ...] = (
    _reason(
        "metadata.namespace", "changed", "what home's namespace is in the remote (the template)"
    ),
    _reason("metadata.labels", "added", "says whose it is: this home's, of this node", _ours),
    _reason("metadata.labels", "removed changed", "labels of the bridge mean home's object", _ours),
    _reason(
        "metadata.annotations",
        "added",
        "says which home pod it stands for, and what of it was carried last",
        _ours,
    ),
    _reason(
        "metadata.annotations", "removed changed", "annotations of the bridge stay at home", _ours
    ),
    _reason(
        "metadata.annotations",
        "removed",
        "kubectl's copy of the whole object stays at home",
        lambda key, _: key == "kubectl.kubernetes.io/last-applied-configuration",
    ),
    _reason(
        "spec.schedulingGates[]",
        "added",
        "holds the pod until home has noted that it may run: it must never run twice",
    ),
    _reason(
        "spec.ephemeralContainers",
        "removed",
        "they follow when the pod is there: a new pod may have none",
    ),
    _reason("spec.nodeSelector", "added", _CONFINED),
    _reason("spec.nodeSelector", "removed changed", _OBEYED),
    _reason("spec.affinity.nodeAffinity.**", "added", _CONFINED),
    _reason("spec.affinity.nodeAffinity.**", "removed changed", _OBEYED),
    *(
        _reason(f"{term}.{key}", "removed changed", _MERGED)
        for term in ("spec.topologySpreadConstraints[]", _REQUIRED, f"{_PREFERRED}.podAffinityTerm")
        for key in ("matchLabelKeys", "mismatchLabelKeys")
    ),
    *(
        reason
        for term in (_REQUIRED, f"{_PREFERRED}.podAffinityTerm")
        for reason in (
            _reason(f"{term}.namespaces.**", "added removed changed", _NAMED),
            _reason(f"{term}.namespaceSelector.**", "added changed", _NAMED),
            _reason(f"{term}.namespaceSelector.**", "removed", _UNKNOWN),
        )
    ),
    _reason(_REQUIRED, "removed", _UNKNOWN),
    _reason(_PREFERRED, "removed", _UNKNOWN),
    _reason(
        "spec.tolerations[]", "removed", "tolerates the virtual node, which is none of the remote's"
    ),
    _reason(
        "spec.automountServiceAccountToken",
        "added changed",
        "says whether the remote is to add a token of its own (--service-accounts)",
    ),
    _reason(
        "spec.serviceAccountName",
        "added changed",
        "the account of that name in the remote (--service-accounts remote)",
    ),
    _reason(
        "spec.priorityClassName", "removed", "the remote has no such class; the default one counts"
    ),
    _reason(
        "spec.containers[].env[]",
        "added",
        "where the pod finds home's API server, of which its token is",
        lambda key, _: key.startswith("KUBERNETES_"),
    ),
    _reason(
        "spec.containers[].env[].value", "added", "what it is at home, written out: identity stays"
    ),
    _reason("spec.volumes[]", "removed", "home's tokens stay at home (--service-accounts)"),
    _reason(f"{_SOURCES}.secret", "added", "the pod's tokens of home and home's CA, in one Secret"),
    _reason(
        f"{_SOURCES}.configMap",
        "removed",
        "home's CA is beside the token, in that Secret",
        lambda _, value: value.get("name") == "kube-root-ca.crt",
    ),
)


def find_differences(
    home: Object, remote: Object, dropped: Iterable[FieldMessage] = ()
) -> Iterator[Difference]:
    """Every difference of ``remote`` from ``home``, in the order of their fields.

    ``dropped`` is what the translation tells of (`pod.Translated`): its words are the better ones.
    """
    told = {item.field: item.message for item in dropped}
    for found in _compare(home, remote, "", ""):
        why = next((said for field, said in told.items() if _touches(field, found.location)), None)
        yield (
            replace(found, reason=why, unsupported=True)
            if why and found.change != "added"
            else found
        )


def _touches(field: str, at: str) -> bool:
    return _within(field, at) or _within(at, field)


def _within(place: str, outer: str) -> bool:
    """Whether a place is another one, or in it."""
    return place == outer or place.startswith((f"{outer}.", f"{outer}["))


# -- comparing -----------------------------------------------------------------------------


def _compare(before: Any, after: Any, path: str, at: str) -> Iterator[Difference]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            below, place = _step(path, at, key)
            if key not in after:
                yield from _whole("removed", before[key], below, place, key)
            elif key not in before:
                yield from _whole("added", after[key], below, place, key)
            else:
                yield from _compare(before[key], after[key], below, place)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _lists(before, after, path, at)
    else:
        rule, why = _rule(path, "changed", "", after)
        yield Difference(path, at, "changed", before, after, rule, why)


def _step(path: str, at: str, key: str) -> tuple[str, str]:
    if path in _MAPS:
        return path, f"{at}[{key}]"
    return f"{path}.{key}".removeprefix("."), f"{at}.{key}".removeprefix(".")


def _lists(before: list[Any], after: list[Any], path: str, at: str) -> Iterator[Difference]:
    key = _KEYS.get(path.rpartition(".")[2], "name")
    old, new = _by_key(before, key), _by_key(after, key)
    if old is not None and new is not None:
        for name in [*old, *(name for name in new if name not in old)]:
            place = f"{at}[{name}]"
            if name not in new:
                yield from _whole("removed", old[name], f"{path}[]", place, name)
            elif name not in old:
                yield from _whole("added", new[name], f"{path}[]", place, name)
            else:
                yield from _compare(old[name], new[name], f"{path}[]", place)
        return
    matcher = SequenceMatcher(None, _texts(before), _texts(after), autojunk=False)
    for _, begin, end, start, stop in matcher.get_opcodes():
        both = min(end - begin, stop - start)
        for number in range(both):
            place = f"{at}[{begin + number}]"
            yield from _compare(before[begin + number], after[start + number], f"{path}[]", place)
        for number in range(begin + both, end):
            yield from _whole("removed", before[number], f"{path}[]", f"{at}[{number}]", "")
        for number in range(start + both, stop):
            yield from _whole("added", after[number], f"{path}[]", f"{at}[{number}]", "")


def _by_key(items: list[Any], key: str) -> dict[str, Any] | None:
    """The items by what tells them apart; None where not each of them has that."""
    found = {str(item[key]): item for item in items if isinstance(item, dict) and item.get(key)}
    return found if len(found) == len(items) else None


def _texts(items: list[Any]) -> list[str]:
    return [json.dumps(item, sort_keys=True) for item in items]


def _whole(change: Change, value: Any, path: str, at: str, key: str) -> Iterator[Difference]:
    """What came or went as a whole, or in the parts for which there are rules."""
    parts: list[tuple[Any, str, str, str]] = []
    if isinstance(value, dict):
        parts = [(inner, *_step(path, at, name), name) for name, inner in value.items()]
    elif isinstance(value, list):
        names = [item.get("name") if isinstance(item, dict) else None for item in value]
        parts = [
            (item, f"{path}[]", f"{at}[{name or number}]", str(name or ""))
            for number, (item, name) in enumerate(zip(value, names, strict=True))
        ]
    rule, why = _rule(path, change, key, value)
    if parts and (not rule or (path in _MAPS and isinstance(value, dict))):
        for part in parts:
            yield from _whole(change, *part)
        return
    before, after = (value, None) if change == "removed" else (None, value)
    yield Difference(path, at, change, before, after, rule, why)


# -- rules ---------------------------------------------------------------------------------


def _rule(path: str, change: Change, key: str, value: Any) -> tuple[str, str]:
    """The rule's path and its words; "" where there is none."""
    usual = field_rules.table_path(path)
    for reason in REASONS:
        if change in reason.changes and _leads_to(reason.path, usual) and reason.when(key, value):
            return reason.path, reason.why
    rule = field_rules.rule_for(path)
    # The table tells what becomes of what there is; what comes to it is told above, place by place.
    if rule is None or rule.decision == "carried" or change == "added" or path in _TOLD_ABOVE:
        return "", ""
    return usual, _MODULE.sub("", rule.reason)


def _leads_to(rule: str, path: str) -> bool:
    return _within(path, rule.removesuffix(".**")) if rule.endswith(".**") else path == rule
