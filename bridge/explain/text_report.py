"""Formats the report of `bridge.explain.json_report` as text. Pure.

The most important parts come first: a summary, what prevents scheduling or causes a rejection,
dropped fields, dependencies and the pod's state; then every difference with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bridge.base.command_output import format_table
from bridge.base.printable_text import escape_line, summarize_names
from translators.object_accessors import Object

#: The number of fields on one line.
MAX_LOCATIONS = 4
#: The maximum displayed length of a value.
_VALUE = 40


def render_report(answer: Object) -> str:
    """The report as text."""
    parts = [escape_line(answer["summary"])]
    node, remote = answer["node"], answer["remote"]
    if node is not None:
        where = f"node {node['name']}"
        if remote.get("server"):
            where += f", remote {remote['server']}"
        if node["others"]:
            where += f" (--node for another: {', '.join(node['others'])})"
        parts.append(_section("where", [where]))
        others = [it for it in answer["nodes"] if it["name"] != node["name"]]
        parts.append(_section("other virtual nodes (best first)", list(map(_candidate, others))))
    why = [f"{it['field']}: {it['why']}" for it in answer["placement"]["obstacles"]]
    if answer["placement"]["possible"]:
        why = [
            "home's scheduler has bound the pod to the node"
            if answer["placement"]["bound"]
            else "the pod fits the node; home's scheduler may prefer another"
        ]
    parts.append(_section("placement", [*why, f"decided by {answer['decidedBy']}"]))
    if answer["podSecurity"]:
        parts.append(_section("Pod Security", [answer["podSecurity"]]))
    for title, lines in (
        ("rejected", [f"by the {it['by']}: {_joined(it)}" for it in answer["refusals"]]),
        ("dropped", [_joined(it) for it in answer["notCarried"]]),
        (
            "not running because" if answer["pod"]["stored"] else "would wait because",
            [f"{it['side']}: {it['why']}" for it in answer["waiting"]],
        ),
    ):
        parts.append(_section(title, lines))
    headers = ("kind", "name", "home", "remote", "remote object")
    parts.append(_table("references", headers, _reference_rows(answer)))
    for title, heads in (
        ("conditions", ("side", "type", "status", "reason")),
        ("Events", ("last", "side", "type", "reason", "message")),
    ):
        rows = [[str(it[head] or "") for head in heads] for it in answer[title.lower()]]
        parts.append(_table(title, heads, rows))
    parts.append(_section("differences", list(_grouped(answer["differences"]))))
    parts.append(_section("not examined", answer["notLookedAt"]))
    return "\n\n".join(part for part in parts if part)


def _section(title: str, lines: list[str]) -> str:
    # A message of a cluster would otherwise add lines of its own, with the title of a section.
    return "\n".join([f"{title}:", *(f"  {escape_line(line)}" for line in lines)]) if lines else ""


def _table(title: str, heads: Sequence[str], rows: list[list[str]]) -> str:
    return _section(title, format_table(heads, rows).splitlines()) if rows else ""


def _joined(it: Object) -> str:
    return f"{it['field']}: {it['why']}" if it["field"] else str(it["why"])


def _candidate(it: Object) -> str:
    if it["possible"]:
        return f"{it['name']}: the pod fits"
    if not it["obstacles"]:
        return f"{it['name']}: skips DaemonSet pods"
    first, more = it["obstacles"][0], len(it["obstacles"]) - 1
    return f"{it['name']}: {_joined(first)}" + (f" (and {more} more)" if more else "")


def _reference_rows(answer: Object) -> list[list[str]]:
    rows = [
        [
            it["kind"],
            it["name"],
            it["home"] + ("" if it["required"] else " (optional)"),
            it["remote"],
            it["becomes"],
        ]
        for it in answer["references"]
    ]
    copied = [it["name"] for it in answer["services"] if it["copied"]]
    if copied:
        there = sum(it["copied"] and it["remote"] == "found" for it in answer["services"])
        found = {0: "-", len(copied): "found"}.get(there, f"{there} of {len(copied)}")
        rows.append(
            [
                "Service",
                summarize_names(copied, MAX_LOCATIONS),
                "found",
                found,
                "the same names, for pods of the remote",
            ]
        )
    return rows


def _grouped(found: Iterable[Object]) -> Iterator[str]:
    """Groups differences with the same change and reason."""
    groups: dict[tuple[bool, str, str], list[Object]] = {}
    for it in found:
        groups.setdefault((not it["notCarried"], it["change"], it["why"]), []).append(it)
    for (_, change, why), group in sorted(groups.items(), key=lambda group: group[0][0]):
        yield f"{change:8} {summarize_names(map(_format_difference, group), MAX_LOCATIONS)}"
        yield f"{'':8} {why}"


def _format_difference(it: Object) -> str:
    if it["change"] != "changed":
        return str(it["path"])
    return f"{it['path']}: {_truncate(it['before'])} → {_truncate(it['after'])}"


def _truncate(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 1]}…"
