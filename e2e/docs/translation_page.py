"""docs/reference/translation.md, generated from the tables and docstrings of translators/.

In a docstring, names of the code have single backticks, and names of the API and of options double
ones. The page is for users: it leaves out names of the code in parentheses, and paragraphs that
start with one.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import yaml

from e2e.docs import links
from sync.pods import action_planner
from translators import ownership_labels, pod_security, virtual_node_identity
from translators.capacity import declared_capacity, node_capacity, pod_requests, resource_quota
from translators.mirror import configmap_secret, endpoint_slice, event, service
from translators.pods import (
    downward_api,
    dropped_metadata,
    field_rules,
    kubelet_admission,
    pod_status,
    references,
    restart_policy_never,
    scheduling_fields,
    service_accounts,
    unschedulable_timeout,
    update,
)
from translators.pods.field_rules import Rule

_GOLDEN = Path(__file__).parents[2] / "tests" / "translators" / "golden"

_HEAD = """\
# Translation of objects

<!-- made by `python -m e2e.docs write`: do not edit -->

Every field of a pod is kept, including fields that this version does not know, unless it would mean
something else in the remote. Such fields are translated, dropped, or cause the pod to be rejected.
In a path, `[]` stands for each item of a list and `**` for all fields below. Init and ephemeral
containers follow the rules of containers, pod anti-affinity those of pod affinity.
"""

#: Heading, introduction, and the rules below it.
_DECISIONS: tuple[tuple[str, str, Callable[[Rule], bool]], ...] = (
    (
        "Rejected: the pod does not run in the remote",
        "The pod stays Pending with the reason `FieldRefused`; an Event explains what to do.",
        lambda it: it.decision == "rejected",
    ),
    (
        "Dropped with an Event",
        "The pod runs without the field. A `FieldDropped` Event names the field.",
        lambda it: it.decision == "dropped" and not it.silent,
    ),
    (
        "Dropped without an Event",
        "Home has already applied the field, or has set it itself.",
        lambda it: it.decision == "dropped" and it.silent,
    ),
    (
        "Translated",
        "The bridge changes, renames or removes these fields. The linked sections explain how.",
        lambda it: it.decision == "translated",
    ),
    ("Kept unchanged", "", lambda it: it.decision == "kept"),
)

#: A reference in parentheses to this code, or to a file of Kubernetes' code.
_CODE_REFERENCE = re.compile(r"\s*\((?:`[\w.]+`|[^()`]*\.go\b[^()`]*)\)")
#: A paragraph about the implementation: it starts with a name of the code.
_IMPLEMENTATION = re.compile(r"(?m)^`[\w.]+` .*\n(?:.+\n)*\n?")
#: A verb at the start of a docstring, whose subject is the bridge.
_VERB = re.compile(r"\A[A-Z][a-z]+s ")

_PODS = (
    ("Placement", scheduling_fields),
    ("Labels and annotations of pods", dropped_metadata),
    ("Identity in the downward API", downward_api),
    ("Service accounts and tokens", service_accounts),
    ("References to ConfigMaps and Secrets", references),
    ("Pods that must not run twice", restart_policy_never),
    ("Updates of a running pod", update),
    ("Kubelet admission", kubelet_admission),
    ("Pods that the remote cannot schedule", unschedulable_timeout),
)
_OTHERS = (
    ("ConfigMaps and Secrets", configmap_secret),
    ("Services", service),
    ("EndpointSlices", endpoint_slice),
    ("Events", event),
    ("Namespaces", virtual_node_identity),
    ("Pod Security of namespaces", pod_security),
    ("Ownership", ownership_labels),
)
_NODE = (
    ("Capacity", node_capacity),
    ("Capacity without nodes", declared_capacity),
    ("Quotas", resource_quota),
    ("Resource requests of a pod", pod_requests),
)


def page() -> str:
    """The page."""
    parts = [_HEAD, "## Fields of a pod\n"]
    for heading, words, chosen in _DECISIONS:
        rules = {path: rule for path, rule in field_rules.TABLE.items() if chosen(rule)}
        parts += [f"### {heading}\n", *([f"{words}\n"] if words else [])]
        parts.append(_table(("fields", "reason"), _by_reason(rules)))
    parts += ["## Actions for a pod\n", docstring_for_users(action_planner)]
    parts.append("## Translation of a pod\n")
    parts += _modules(_PODS)
    parts += ["## Status of a pod\n", docstring_for_users(pod_status), _status()]
    parts += ["## Other objects\n", *_modules(_OTHERS), _left_at_home()]
    parts += ["## Capacity of the virtual node\n", *_modules(_NODE), "## Examples\n", _examples()]
    return "\n".join(parts)


def _by_reason(rules: dict[str, Rule]) -> Iterator[tuple[str, str]]:
    fields: dict[Rule, list[str]] = {}
    for path, rule in rules.items():
        fields.setdefault(rule, []).append(path)
    for rule, paths in fields.items():
        unless = f" (except `{rule.admission_defaults[0]}`)" if rule.admission_defaults else ""
        yield _folded(paths), rule.reason + unless + _section(rule.module)


def _section(module: str) -> str:
    """A link to the section about a module of `translators.pods`; "" without one."""
    for heading, found in _PODS:
        if module and found.__name__ == f"translators.pods.{module}":
            return f" ([{heading}](#{links.slug(heading)}))"
    return ""


def _folded(paths: Iterable[str]) -> str:
    """The paths, grouped by parent."""
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
        yield docstring_for_users(module)
        if module is dropped_metadata:
            rows = ((_names(patterns), what) for what, patterns in dropped_metadata.TABLE.items())
            yield _table(("keys", "what they do"), rows)


def docstring_for_users(module: ModuleType) -> str:
    """The docstring of a module as Markdown for users. Raises ValueError if it names code."""
    text = inspect.cleandoc(module.__doc__ or "") + "\n"
    text = _IMPLEMENTATION.sub("", _CODE_REFERENCE.sub("", text)).strip()
    if named := re.search(r"(?<!`)`[^`]+`(?!`)", text):
        raise ValueError(f"{module.__name__}: the docstring names code for users: {named[0]}")
    text = _VERB.sub(lambda it: "The bridge " + it[0].lower(), text).replace("``", "`")
    # Markdown needs an empty line before a list, a docstring does not.
    text = re.sub(r"(?m)^(?![-\d ]|$)(.*)\n(?=- |1\. )", r"\1\n\n", text)
    return _wrapped(text) + "\n"


def _wrapped(text: str) -> str:
    """Markdown with its paragraphs and list items wrapped like the other pages; tables stay."""
    return "".join(map(_wrapped_block, re.split(r"(\n\n|\n(?=- |\d\. ))", text)))


def _wrapped_block(block: str) -> str:
    if block.isspace() or block.startswith("|"):
        return block
    marker = re.match(r"- |\d\. |", block)
    indent = " " * (marker.end() if marker else 0)
    return textwrap.fill(
        " ".join(block.split()),
        width=120,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _status() -> str:
    rows = [
        ("from the remote's kubelet", _names(pod_status.REMOTE_FIELDS)),
        ("from home", _names(pod_status.HOME_FIELDS)),
    ]
    return _table(("origin", "fields of `status`"), rows)


def _left_at_home() -> str:
    rows = [
        (
            "Service",
            _names(f"spec.{it}" for it in service.HOME_FIELDS) + ", `spec.ports[].nodePort`",
        ),
        ("EndpointSlice", _names(f"endpoints[].{it}" for it in endpoint_slice.HOME_FIELDS)),
    ]
    return "### Fields that are not copied\n\n" + _table(("object", "fields"), rows)


def _examples() -> str:
    rows = []
    for file in sorted(_GOLDEN.glob("*.yaml")):
        about = yaml.safe_load(file.read_text("utf-8"))["about"]
        rows.append((f"[`{file.stem}`](../../tests/translators/golden/{file.name})", about))
    head = "Input and output of the translation, verified by tests.\n\n"
    return head + _table(("file", "case"), rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    shown = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in shown) + "\n"
