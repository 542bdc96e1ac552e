"""The lint rule for language finds what it is for, and accepts the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.language import __main__ as lint


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    return tmp_path


def found(folder: Path, name: str, text: str) -> list[str]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return list(lint.findings(path, lint.rules()))


@pytest.mark.parametrize(
    "text",
    [
        '"""The scheduler is told."""\n',  # lint: language
        "x = 1  # What nobody reads.\n",  # lint: language
        'log.info("the node is gone")\n',  # lint: language
        "def what_is_told() -> None: ...\n",  # lint: language
        "def send(told: int) -> None: ...\n",  # lint: language
        "told = 1\n",  # lint: language
    ],
)
def test_python_with_a_listed_expression_is_reported(folder: Path, text: str) -> None:
    assert found(folder, "module.py", text)


@pytest.mark.parametrize(
    "text",
    [
        '"""The bridge reports the status to home."""\n',
        '"""Which cluster is this?"""\n',
        "copyrights = 1\n",
        'AS_IN_UPSTREAM = "told"  # lint: language\n',
    ],
)
def test_python_in_the_fields_terms_is_accepted(folder: Path, text: str) -> None:
    assert found(folder, "module.py", text) == []


def test_a_finding_names_place_expression_and_term(folder: Path) -> None:
    lines = found(folder, "page.md", "# A page\n\nHome is told of it.\n")  # lint: language

    term = "write reported, logged, written to status, emitted as an Event"
    assert lines == [f"page.md:3: 'told': {term}"]  # lint: language


def test_code_in_a_document_is_not_prose(folder: Path) -> None:
    assert found(folder, "page.md", "`told` is\n```\nnobody said\n```\n") == []  # lint: language


@pytest.mark.parametrize(
    ("subject", "right"),
    [
        ("relay: close the client when the port-forward drops", True),
        ("docs, e2e: rename the pages", True),
        ("Merge branch 'main'", True),
        ("Close the client", False),
        ("relay:", False),
    ],
)
def test_commit_subjects_have_an_area_and_a_summary(subject: str, right: bool) -> None:
    assert (lint.wrong_subject(f"{subject}\n\nThe cause is in the body.\n") == "") is right
