"""The hand-written reference pages name exactly what the code declares."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from bridge.checks import cluster_compatibility
from e2e.clusters.versions import DEFAULT_KUBERNETES, KUBERNETES
from e2e.docs import chart_page
from e2e.docs.generated_pages import DOCS, REPOSITORY

DOMAIN = "cluster-bridge.io"
PRODUCT = sorted(
    path
    for layer in ("bridge", "sync", "translators")
    for path in (REPOSITORY / layer).rglob("*.py")
)
LABELS = (DOCS / "reference/labels-annotations.md").read_text("utf-8")
REASONS = (DOCS / "reference/conditions-events.md").read_text("utf-8")
COMPATIBILITY = (DOCS / "reference/compatibility.md").read_text("utf-8")

#: Functions that take a reason → the position of that argument.
_REASON_ARGUMENT = {
    "NodeCondition": 1,
    "ReconcileBlocked": 0,
    "emit": 1,
    "emit_on_change": 1,
    "normal": 1,
    "warn": 1,
    "_report_not_created": 2,
    "_report_waiting": 2,
}
#: Reasons that no user sees: the reconcile is repeated without a report.
_NOT_REPORTED = {"Undecided"}
_CAMEL_CASE = re.compile(r"[A-Z][a-z]+([A-Z]+[a-z]*)+")


def declared_keys() -> set[str]:
    """Every key of the bridge's domain that an f-string of the code consists of."""
    found = set()
    for path in PRODUCT:
        for key in re.findall(r'f"((?:[a-z-]+\.)?\{DOMAIN\}/[\w-]+)"', path.read_text("utf-8")):
            found.add(key.replace("{DOMAIN}", DOMAIN))
    return found


def test_every_key_of_the_domain_is_in_the_reference() -> None:
    keys = declared_keys()
    assert len(keys) > 30
    documented = set(re.findall(rf"`([\w.-]*{re.escape(DOMAIN)}/[\w-]+)`", LABELS + REASONS))
    by_node = {it for it in documented if it.endswith("/NODE")}
    assert documented - by_node == keys
    assert by_node == {f"used-by.{DOMAIN}/NODE", f"namespaces.{DOMAIN}/NODE"}


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                    yield target.id, node.value.value


def _texts(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, constants)
        yield from _texts(node.orelse, constants)
    elif isinstance(node, ast.Call):
        for argument in node.args:
            yield from _texts(argument, constants)
    elif isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in constants:
            yield constants[name]


def _reasons_in(path: Path, constants: dict[str, str]) -> Iterator[str]:
    tree = ast.parse(path.read_text("utf-8"))
    own = constants | dict(_constants(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            position = _REASON_ARGUMENT.get(name)
            if position is not None and len(node.args) > position:
                yield from _texts(node.args[position], own)
            for keyword in node.keywords:
                if keyword.arg == "reason":
                    yield from _texts(keyword.value, own)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {it.id for it in targets if isinstance(it, ast.Name)}
            if node.value is None:
                continue
            if names & {"reason", "REASON"}:
                yield from _texts(node.value, own)
            elif "_REASONS" in names and isinstance(node.value, ast.Dict):
                for value in node.value.values:
                    yield from _texts(value, own)
        elif isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
            yield from _texts(node.value.elts[0], own)


def declared_reasons() -> set[str]:
    """Every reason that the code passes to an Event, a condition or a status."""
    reporting = [
        path
        for path in PRODUCT
        if path.is_relative_to(REPOSITORY / "sync")
        or path.is_relative_to(REPOSITORY / "translators")
        or path.is_relative_to(REPOSITORY / "bridge/node")
    ]
    constants = {
        name: value
        for path in reporting
        for name, value in _constants(ast.parse(path.read_text("utf-8")))
        if name.startswith(("REASON_", "NO_", "POD_")) and _CAMEL_CASE.fullmatch(value)
    }
    found = {reason for path in reporting for reason in _reasons_in(path, constants)}
    return {it for it in found if _CAMEL_CASE.fullmatch(it)} - _NOT_REPORTED


def test_every_reason_is_in_the_reference() -> None:
    reasons = declared_reasons()
    assert len(reasons) > 40
    assert {
        "RelayBackWaiting",
        "RemoteInvalid",
        "RemoteRefused",
        "TokenRefused",
        "NodeReady",
    } <= reasons
    assert reasons - {*re.findall(r"`(\w+)`", REASONS)} == set()


def test_every_reason_of_the_reference_is_in_the_code() -> None:
    code = "\n".join(path.read_text("utf-8") for path in PRODUCT)
    first_cells = [line.split(" | ")[0] for line in REASONS.splitlines() if line.startswith("| `")]
    named = {it for cell in first_cells for it in re.findall(r"`(\w+)`", cell)}
    written = {it.removesuffix("cpu").removesuffix("memory") for it in named}
    assert {it for it in written if f'"{it}' not in code} == set()


def test_tested_versions_are_those_that_the_repository_runs() -> None:
    rows = re.findall(r"^\| (1\.\d+) \| (1\.\d+) \|", COMPATIBILITY, re.MULTILINE)
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    skew = dict(re.findall(r"^(OLDER|NEWER) \?= (.*)$", makefile, re.MULTILINE))
    default = ".".join(DEFAULT_KUBERNETES.removeprefix("v").split(".")[:2])
    assert {*rows} == {
        (default, default),
        (skew["OLDER"], skew["NEWER"]),
        (skew["NEWER"], skew["OLDER"]),
    }
    assert f"from {min(KUBERNETES)} to {max(KUBERNETES)}" in COMPATIBILITY
    assert f"| oldest remote | 1.{cluster_compatibility.OLDEST_REMOTE}," in COMPATIBILITY
    assert f"| oldest home | 1.{cluster_compatibility.OLDEST_HOME}," in COMPATIBILITY


def test_tested_versions_of_python_are_those_of_the_workflow() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text("utf-8"))
    pythons = workflow["jobs"]["fast"]["strategy"]["matrix"]["python"]
    row = next(it for it in COMPATIBILITY.splitlines() if it.startswith("| Python |"))
    assert sorted({*re.findall(r"3\.\d+", row)}) == pythons


def test_every_chart_value_has_a_description() -> None:
    values = (REPOSITORY / "manifests/chart/values.yaml").read_text("utf-8")
    described = dict(chart_page.value_comments(values))
    loaded = yaml.safe_load(values)
    assert set(described) == {*loaded, *(f"defaults.{name}" for name in loaded["defaults"])}
    assert all(described.values())
