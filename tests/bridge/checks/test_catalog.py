"""The table of checks, the page that explains them, and reports."""

from __future__ import annotations

import re
from pathlib import Path

from bridge.checks.catalog import CHECKS
from bridge.checks.check_runner import IMPLEMENTATIONS
from bridge.checks.findings import Finding, Severity, build_report, error, info, ok, warning
from bridge.checks.required_at_join import STAGES

ROOT = Path(__file__).parents[3]
SOURCES = [it for it in (ROOT / "bridge" / "checks").glob("*.py") if it.name != "catalog.py"]


def test_page_explains_each_check() -> None:
    page = (ROOT / "docs" / "reference" / "checks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(BRG\d+)\]\(#(brg\d+)\) \| (.*) \| (yes|) \|$", page, re.MULTILINE)
    assert rows == [
        (it.id, it.docs.partition("#")[2], it.title, "yes" if it.join else "")
        for it in CHECKS.values()
    ]
    sections = re.split(r"\n## ", page)[1:]
    for check, section in zip(CHECKS.values(), sections, strict=True):
        heading, *paragraphs = section.strip().split("\n\n")
        assert heading == f'<a id="{check.id.lower()}"></a>{check.id}: {check.title}'
        *explanation, remedy = (" ".join(it.split("\n")) for it in paragraphs)
        assert explanation
        assert remedy == f"What to do: {check.hint}."


def test_each_check_has_an_implementation() -> None:
    used = {word for path in SOURCES for word in re.findall(r'"(BRG\d+)"', path.read_text("utf-8"))}
    assert used - {"BRG300"} == set(CHECKS)
    assert {it.check_id for it in IMPLEMENTATIONS} <= set(CHECKS)
    required = {it.check_id for stage in STAGES for it in stage}
    assert required == {it.id for it in CHECKS.values() if it.join}
    assert {it for stage in STAGES for it in stage} <= set(IMPLEMENTATIONS)


def test_each_check_has_title_and_hint() -> None:
    for check in CHECKS.values():
        assert re.fullmatch(r"BRG\d{3}", check.id)
        assert check.title[0].isupper()
        assert check.hint
        assert not check.hint.endswith(".")


def test_report_has_worst_findings_first_with_advice() -> None:
    found = build_report(
        "health",
        [
            Finding("BRG302", Severity.ERROR, "home", "NotReady", node="remote"),
            warning("BRG104", "remote", "soon"),
            info("BRG405", "both", "not checked"),
            ok("BRG101", "home", "answers"),
        ],
    )
    assert [it.id for it in found.findings] == ["BRG101", "BRG104", "BRG405", "BRG302"]
    assert found.failed
    assert found.errors == ["BRG302"]
    assert found.rows()[0] == ["error", "BRG302", "home/remote", "NotReady"]
    assert [line[:6] for line in found.advice()] == ["BRG302", "BRG104"]
    assert found.summary() == "1 error, 1 warning, 1 info, 1 ok"


def test_json_fields_are_stable() -> None:
    data = build_report("preflight", [error("BRG101", "home", "no answer", "try again")]).as_data()
    assert data == {
        "kind": "preflight",
        "summary": {"ok": 0, "info": 0, "warning": 0, "error": 1},
        "findings": [
            {
                "id": "BRG101",
                "title": "The API server answers",
                "severity": "error",
                "side": "home",
                "node": "",
                "found": "no answer",
                "hint": "try again",
                "docs": "docs/reference/checks.md#brg101",
            }
        ],
    }
