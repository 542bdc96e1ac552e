"""docs/reference/translation.md, made from the tables and docstrings of translators/."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import yaml

from sync.pods import plan
from translators import identity
from translators.capacity import node_capacity, pod_requests, resource_quota
from translators.mirror import configmap_secret, endpointslice, event, service
from translators.pods import (
    downward_api,
    field_rules,
    kubelet_admission,
    placement,
    references,
    run_once,
    service_accounts,
    status,
    unschedulable_timeout,
    update,
)
from translators.pods.field_rules import Rule

_GOLDEN = Path(__file__).parents[2] / "tests" / "translators" / "golden"

_HEAD = """\
# What is translated, and how

<!-- made by `python -m e2e.docs write`: do not edit -->

Of a pod, everything is carried, fields that this version does not know included. What only means
something in home's cluster is translated, dropped, or a reason to refuse the pod. One table decides
each field of the v1 API,
[`translators/pods/field_rules.py`](../../translators/pods/field_rules.py); this page
is made from it, and from the docstrings of the modules beside it. `[]` is any item of a list,
`**` all below. Init and ephemeral containers are decided as containers are, anti-affinity to
pods as affinity.
"""

#: Heading, what is said below it, and which rules are meant.
_DECISIONS: tuple[tuple[str, str, Callable[[Rule], bool]], ...] = (
    (
        "Refused: the pod does not run in the remote",
        "It stays Pending with the reason `FieldRefused`, and an Event says what to do.",
        lambda it: it.decision == "refused",
    ),
    (
        "Dropped, and told",
        "The rest of the pod runs. An Event, `FieldDropped`, names what it asked for and lacks.",
        lambda it: it.decision == "dropped" and not it.silent,
    ),
    (
        "Dropped without a word",
        "Home has done already what the field says, or home set it by itself.",
        lambda it: it.decision == "dropped" and it.silent,
    ),
    (
        "Translated",
        "Carried under its name or with its value in the remote, by the module before the colon.",
        lambda it: it.decision == "translated",
    ),
    ("Carried as it is", "", lambda it: it.decision == "carried"),
)

_PODS = (
    ("Placement", placement),
    ("Identity in the downward API", downward_api),
    ("Service accounts and tokens", service_accounts),
    ("What a pod refers to", references),
    ("Pods that must not run twice", run_once),
    ("Changes of a pod that runs", update),
    ("Pods that cannot fit", kubelet_admission),
    ("Pods that the remote cannot place", unschedulable_timeout),
)
_OTHERS = (
    ("ConfigMaps and Secrets", configmap_secret),
    ("Services", service),
    ("EndpointSlices", endpointslice),
    ("Events", event),
    ("Names, namespaces and ownership", identity),
)
_NODE = (
    ("Capacity", node_capacity),
    ("Quotas", resource_quota),
    ("What a pod requests", pod_requests),
)


def page() -> str:
    """The page."""
    parts = [_HEAD, "## Fields of a pod\n"]
    for heading, words, chosen in _DECISIONS:
        rules = {path: rule for path, rule in field_rules.TABLE.items() if chosen(rule)}
        parts += [f"### {heading}\n", *([f"{words}\n"] if words else [])]
        parts.append(_table(("fields", "why"), _by_reason(rules)))
    parts += ["## What is done for a pod\n", _words(plan)]
    parts.append("## How a pod is translated\n")
    parts += _modules(_PODS)
    parts += ["## Status of a pod\n", _words(status), _status()]
    parts += ["## Other objects\n", *_modules(_OTHERS), _left_at_home()]
    parts += ["## What the node offers\n", *_modules(_NODE), "## Examples\n", _examples()]
    return "\n".join(parts)


def _by_reason(rules: dict[str, Rule]) -> Iterator[tuple[str, str]]:
    fields: dict[Rule, list[str]] = {}
    for path, rule in rules.items():
        fields.setdefault(rule, []).append(path)
    for rule, paths in fields.items():
        unless = (
            f" (unless it is `{rule.admission_defaults[0]}`)" if rule.admission_defaults else ""
        )
        yield _folded(paths), rule.reason + unless


def _folded(paths: Iterable[str]) -> str:
    """The paths, those with the same parent together."""
    below: dict[str, list[str]] = {}
    for path in sorted(paths):
        parent = path.removesuffix(".**").rpartition(".")[0]
        below.setdefault(parent, []).append(path[len(parent) :].removeprefix("."))
    return "; ".join(_below(parent, fields) for parent, fields in below.items())


def _below(parent: str, fields: list[str]) -> str:
    if parent and len(fields) > 1:
        return f"`{parent}`: {_names(fields)}"
    return _names(f"{parent}.{field}".lstrip(".") for field in fields)


def _modules(wanted: Iterable[tuple[str, ModuleType]]) -> Iterator[str]:
    for heading, module in wanted:
        yield f"### {heading}\n"
        yield _words(module)


def _words(module: ModuleType) -> str:
    """What a module says of itself, as Markdown."""
    text = inspect.cleandoc(module.__doc__ or "").replace("``", "`")
    # A list begins after an empty line, which a docstring need not have.
    text = re.sub(r"(?m)^(?![-\d ]|$)(.*)\n(?=- |1\. )", r"\1\n\n", text)
    name = module.__name__.replace(".", "/")
    return f"{text}\n\n[`{name}.py`](../../{name}.py)\n"


def _status() -> str:
    rows = [
        ("as the remote's kubelet says", _names(status.REMOTE_FIELDS)),
        ("home's own", _names(status.HOME_FIELDS)),
    ]
    return _table(("fields of `status`", "which"), rows)


def _left_at_home() -> str:
    rows = [
        (
            "Service",
            _names(f"spec.{it}" for it in service.HOME_FIELDS) + ", `spec.ports[].nodePort`",
        ),
        ("EndpointSlice", _names(f"endpoints[].{it}" for it in endpointslice.HOME_FIELDS)),
    ]
    return "### Fields that stay at home\n\n" + _table(("of a", "fields"), rows)


def _examples() -> str:
    rows = []
    for file in sorted(_GOLDEN.glob("*.yaml")):
        about = yaml.safe_load(file.read_text("utf-8"))["about"]
        rows.append((f"[`{file.stem}`](../../tests/translators/golden/{file.name})", about))
    head = "What goes in and what comes out, each held by a test.\n\n"
    return head + _table(("file", "what it shows"), rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    shown = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in shown) + "\n"
