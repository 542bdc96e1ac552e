"""Prometheus' text format: what a kubelet of the remote says of our pods, in home's names. Pure.

Only samples that are labelled with the namespace and the name of a pod of ours are kept; samples
of other pods, and of the machine, stay in the remote. Of a sample that is kept, the labels
``namespace``, ``pod`` and ``pod_uid`` are rewritten; its other labels, its value and its timestamp
are passed on as they came, whatever family it is of. The format is that of version 0.0.4
(prometheus/docs, ``exposition_formats.md``): a line that is not of it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from translators.identity import Origin

#: The type of an answer in this format.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABEL = re.compile(r'[ \t]*([a-zA-Z_]\w*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*,?', re.ASCII)
_ESCAPE = re.compile(r'\\([\\"n])')
#: What a histogram's or summary's samples have behind the name of their family.
_SUFFIXES = ("_bucket", "_count", "_sum")


class RemotePodName(NamedTuple):
    """A pod of the remote, as its kubelets name it."""

    namespace: str
    name: str


@dataclass(slots=True)
class Family:
    """The samples of one metric: lines, without their ends."""

    header: list[str] = field(default_factory=list)
    """HELP and TYPE."""
    samples: list[str] = field(default_factory=list)


Families = dict[str, Family]


class Sample(NamedTuple):
    """One sample, read."""

    labels: dict[str, str]
    value: float
    timestamp_ms: int | None
    """Since 1970; None where the sample does not say when it was taken."""


def relabel_metrics(text: str, pods: Mapping[RemotePodName, Origin]) -> Families:
    """The samples of these pods, by family and in the order in which they came."""
    families: Families = {}
    headers: dict[str, list[str]] = {}
    known: dict[str, str | None] = {}
    current = ""
    for line in text.split("\n"):
        if line.startswith("#"):
            _, _, rest = line.partition(" ")
            keyword, _, rest = rest.partition(" ")
            if keyword in ("HELP", "TYPE"):
                current = rest.partition(" ")[0]
                headers.setdefault(current, []).append(line)
            continue
        name, brace, rest = line.partition("{")
        labels, end, value = rest.rpartition("}")
        if not (brace and end):
            continue
        # The label sets of a container come again in each family.
        if labels not in known:
            known[labels] = _in_home_names(labels, pods)
        ours = known[labels]
        if ours is None:
            continue
        name = name.strip()
        family = current if _is_of(name, current) else name
        found = families.get(family)
        if found is None:
            found = families[family] = Family(headers.get(family, []))
        found.samples.append(f"{name}{{{ours}}}{value}")
    return families


def merge_families(parts: Iterable[Families]) -> Families:
    """The samples of several kubelets, each family once."""
    found: Families = {}
    for part in parts:
        for name, family in part.items():
            into = found.setdefault(name, Family(family.header))
            into.samples.extend(family.samples)
    return found


def render_families(families: Families) -> str:
    """The text, families in the order of their names as kubelets have them."""
    lines = [
        line for _, family in sorted(families.items()) for line in (*family.header, *family.samples)
    ]
    return "\n".join([*lines, ""])


def new_family(name: str, kind: str, help_text: str) -> Family:
    """A family without samples. ``kind`` is ``counter`` or ``gauge``; ``told`` its HELP."""
    return Family([f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"])


def format_sample(
    name: str, labels: Mapping[str, str], value: float, timestamp_ms: int | None = None
) -> str:
    """One sample; ``at`` in milliseconds since 1970."""
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    stamp = f" {timestamp_ms}" if timestamp_ms is not None else ""
    return f"{name}{{{pairs}}} {value!r}{stamp}" if pairs else f"{name} {value!r}{stamp}"


def parse_samples(family: Family) -> Iterator[Sample]:
    """The samples of a family that has labels. Values that are no numbers are left out."""
    for text in family.samples:
        labels, _, rest = text.partition("{")[2].rpartition("}")
        fields = rest.split()
        try:
            value = float(fields[0])
            at = int(fields[1]) if len(fields) > 1 else None
        except (ValueError, IndexError):
            continue
        yield Sample(_read_labels(labels) or {}, value, at)


def _in_home_names(labels: str, pods: Mapping[RemotePodName, Origin]) -> str | None:
    """The label set with home's names; None for one that is not of a pod of ours."""
    found = _spans(labels)
    if found is None or "namespace" not in found or "pod" not in found:
        return None
    home = pods.get(RemotePodName(found["namespace"][2], found["pod"][2]))
    if home is None:
        return None
    renamed = {"namespace": home.namespace, "pod": home.name, "pod_uid": home.uid}
    parts, done = [], 0
    for name, match in found.items():
        if name in renamed:
            parts += [labels[done : match.start(2)], renamed[name]]
            done = match.end(2)
    return "".join([*parts, labels[done:]])


def _spans(labels: str) -> dict[str, re.Match[str]] | None:
    """Name → where label and value stand, in order; None where this is no set of labels."""
    found: dict[str, re.Match[str]] = {}
    position = 0
    while position < len(labels):
        match = _LABEL.match(labels, position)
        if match is None or match[1] in found:
            return None
        found[match[1]] = match
        position = match.end()
    return found


def _read_labels(labels: str) -> dict[str, str] | None:
    found = _spans(labels)
    return None if found is None else {name: _unescaped(it[2]) for name, it in found.items()}


def _is_of(name: str, family: str) -> bool:
    """Whether a sample of this name belongs to the family whose header was seen last."""
    return name == family or (name.startswith(family) and name[len(family) :] in _SUFFIXES)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)
