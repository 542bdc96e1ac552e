"""Translates metrics of the remote's kubelets, in Prometheus' text format, to home's pod names.
Pure.

Only samples with the namespace and name labels of managed pods are kept; samples of other pods and
of the node stay in the remote. The labels ``namespace``, ``pod`` and ``pod_uid`` are rewritten;
other labels, the value and the timestamp are unchanged, for all metric families.

The format is version 0.0.4 (prometheus/docs, ``exposition_formats.md``). The kubelets are not
trusted: one invalid line would make a scraper reject the whole response, with the samples of all
tenants. So only lines are passed on that the parsers of Prometheus and of its Go libraries accept:

- Names of metrics and labels have the characters that the format permits; no label is repeated, or
  is ``__name__``; labels are separated by commas, and their values and HELP texts contain no other
  escapes than the format has, and no NUL.
- Values are decimal numbers that a float64 holds, NaN, or infinite, and so are the labels ``le``
  and ``quantile``; buckets and counts are not negative. Timestamps are milliseconds since 1970 in
  an int64.
- A family has at most one HELP and one TYPE, of a known type, before its samples. It has neither if
  it is named as the ``_bucket``, ``_count`` or ``_sum`` of another family, which can be a
  histogram.
- No line is longer than `LINE_LIMIT`.

Other lines are dropped. Apart from the kept samples, a text of any content takes some times its own
memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from translators.ownership_labels import Origin

#: Media type of this format.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Characters of a line: label sets of cAdvisor have some hundred.
LINE_LIMIT = 2**16
#: Families with a header, and label sets that are remembered; a kubelet has some hundred families,
#: and each of its containers some label sets.
MAX_FAMILIES, MAX_LABEL_SETS = 1000, 4096

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_METRIC = re.compile(_NAME)
# Possessive, so that nothing is kept of each character for backtracking.
_LABEL = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\0]|\\["\\n])*+)"[ \t]*(?:,|\Z)'
)
_HEADER = re.compile(
    rf"# (?:HELP {_NAME} (?:[^\\\0]|\\[\\n])*+"
    rf"|TYPE {_NAME} (?:counter|gauge|histogram|summary|untyped))"
)
# At most as many digits as a float64 or an int64 has, and some.
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?|NaN|[+-]Inf"
)
_TAIL = re.compile(r"[ \t]*([^ \t]+)(?:[ \t]+([0-9]{1,18}))?[ \t]*")
#: The labels of which parsers expect numbers.
_NUMERIC_LABELS = ("le", "quantile")
#: The parts of a name or label set that make a sample a count of a histogram.
_COUNTS = re.compile(r"_(?:bucket|count)\Z|(?:\A|[, \t])le[ \t]*=")
# Found one after the other: a text of short lines needs a multiple of its memory as a list.
_LINE = re.compile(r"[^\n]+")
_ESCAPE = re.compile(r'\\([\\"n])')
#: Suffixes of the samples of histograms and summaries.
_SUFFIXES = ("_bucket", "_count", "_sum")
#: The characters of a header that show which of the two it is.
_KEYWORD = len("# HELP")


class RemotePodName(NamedTuple):
    """A pod of the remote, as kubelets label it."""

    namespace: str
    name: str


@dataclass(slots=True)
class Family:
    """The samples of one metric, as lines without line endings."""

    header: list[str] = field(default_factory=list)
    """The HELP and TYPE lines."""
    samples: list[str] = field(default_factory=list)


Families = dict[str, Family]


class Sample(NamedTuple):
    """A parsed sample."""

    labels: dict[str, str]
    value: float
    timestamp_ms: int | None
    """Milliseconds since 1970; None without a timestamp."""


def relabel_metrics(text: str, pods: Mapping[RemotePodName, Origin]) -> Families:
    """The samples of these pods, by family, in their original order."""
    families: Families = {}
    headers: dict[str, list[str]] = {}
    translated: dict[str, str | None] = {}
    current = ""
    for found in _LINE.finditer(text):
        if found.end() - found.start() > LINE_LIMIT:
            continue
        line = found[0]
        if line.startswith("#"):
            _, _, rest = line.partition(" ")
            keyword, _, rest = rest.partition(" ")
            if keyword in ("HELP", "TYPE"):
                current = rest.partition(" ")[0]
                if current in headers or len(headers) < MAX_FAMILIES:
                    _add_header(headers.setdefault(current, []), line)
            continue
        name, brace, rest = line.partition("{")
        labels, end, value = rest.rpartition("}")
        if not (brace and end):
            continue
        # Every family repeats the label sets of a container.
        if labels not in translated:
            if len(translated) >= MAX_LABEL_SETS:
                translated.clear()
            translated[labels] = _translate_labels(labels, pods)
        home_labels = translated[labels]
        if home_labels is None:
            continue
        name = name.strip(" \t")
        sample = _sample(name, home_labels, value)
        if sample is None:
            continue
        is_current = name.startswith(current) and name[len(current) :] in ("", *_SUFFIXES)
        family = current if is_current else name
        if family not in families:
            families[family] = Family(headers.get(family, []))
        families[family].samples.append(sample)
    return families


def merge_families(parts: Iterable[Families]) -> Families:
    """The samples of several kubelets, with each family once."""
    merged: Families = {}
    for part in parts:
        for name, family in part.items():
            merged_family = merged.setdefault(name, Family(family.header))
            merged_family.samples.extend(family.samples)
    return merged


def render_families(families: Families) -> str:
    """The text, with the families sorted by name as kubelets do."""
    lines: list[str] = []
    for name, family in sorted(families.items()):
        stems = [name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)]
        if not any(stem in families for stem in stems):
            lines += family.header
        lines += family.samples
    return "\n".join([*lines, ""])


def new_family(name: str, kind: str, help_text: str) -> Family:
    """A family without samples. ``kind`` is ``counter`` or ``gauge``."""
    return Family([f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"])


def format_sample(
    name: str, labels: Mapping[str, str], value: float, timestamp_ms: int | None = None
) -> str:
    """One sample line."""
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    stamp = f" {timestamp_ms}" if timestamp_ms is not None else ""
    return f"{name}{{{pairs}}} {value!r}{stamp}" if pairs else f"{name} {value!r}{stamp}"


def parse_samples(family: Family) -> Iterator[Sample]:
    """The samples of a family that have labels and a numeric value."""
    for text in family.samples:
        labels, _, rest = text.partition("{")[2].rpartition("}")
        fields = rest.split()
        try:
            value = float(fields[0])
            at = int(fields[1]) if len(fields) > 1 else None
        except (ValueError, IndexError):
            continue
        spans = _spans(labels) or {}
        unescaped = {
            key: _ESCAPE.sub(lambda it: "\n" if it[1] == "n" else it[1], span[2])
            for key, span in spans.items()
        }
        yield Sample(unescaped, value, at)


def _add_header(header: list[str], line: str) -> None:
    """Adds a HELP or TYPE line, if it is valid and the first of its family."""
    keyword = line[:_KEYWORD]
    if _HEADER.fullmatch(line) and not any(other.startswith(keyword) for other in header):
        header.append(line)


def _sample(name: str, labels: str, tail: str) -> str | None:
    """The sample with these labels, and with value and timestamp of ``tail``; None if it is not
    valid."""
    match = _TAIL.fullmatch(tail)
    if match is None or not _is_number(match[1]) or not _METRIC.fullmatch(name):
        return None
    if match[1].startswith("-") and (_COUNTS.search(name) or _COUNTS.search(labels)):
        return None
    stamp = "" if match[2] is None else f" {match[2]}"
    return f"{name}{{{labels}}} {match[1]}{stamp}"


def _is_number(text: str) -> bool:
    """Whether the text is a float64 to Prometheus; Go's parser rejects 1e999, Python's does not."""
    if not _NUMBER.fullmatch(text):
        return False
    return text.endswith("Inf") or not math.isinf(float(text))


def _translate_labels(labels: str, pods: Mapping[RemotePodName, Origin]) -> str | None:
    """The label set with home's names; None if it is not of a managed pod."""
    spans = _spans(labels)
    if spans is None or "__name__" in spans or "namespace" not in spans or "pod" not in spans:
        return None
    if not all(_is_number(spans[name][2]) for name in _NUMERIC_LABELS if name in spans):
        return None
    home = pods.get(RemotePodName(spans["namespace"][2], spans["pod"][2]))
    if home is None:
        return None
    renamed = {"namespace": home.namespace, "pod": home.name, "pod_uid": home.uid}
    parts, copied_to = [], 0
    for name, match in spans.items():
        if name in renamed:
            parts += [labels[copied_to : match.start(2)], renamed[name]]
            copied_to = match.end(2)
    return "".join([*parts, labels[copied_to:]])


def _spans(labels: str) -> dict[str, re.Match[str]] | None:
    """Label name to match (name, value), in order; None if the text is not a label set."""
    spans: dict[str, re.Match[str]] = {}
    position = 0
    while position < len(labels):
        match = _LABEL.match(labels, position)
        if match is None or match[1] in spans:
            return None
        spans[match[1]] = match
        position = match.end()
    return spans


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
