"""Links, anchors, file names and module names in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from e2e.docs import links
from e2e.docs.generated_pages import DOCS, REPOSITORY

DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), REPOSITORY / "manifests/README.md"]
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: str(it.relative_to(REPOSITORY)))
def test_links_of_a_document_resolve(document: Path) -> None:
    wrong = []
    for link in links.links(document.read_text("utf-8")):
        if link.is_external:
            continue
        there = (document.parent / link.path).resolve() if link.path else document
        if not there.is_relative_to(REPOSITORY) or not there.exists():
            wrong.append(f"{link.line}: {link.target}: no such file")
        elif link.anchor and link.anchor not in links.heading_anchors(there.read_text("utf-8")):
            wrong.append(f"{link.line}: {link.target}: no such heading")
    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: str(it.relative_to(REPOSITORY)))
def test_anchors_of_a_document_are_unique(document: Path) -> None:
    found = links.heading_anchors(document.read_text("utf-8"))
    assert len(found) == len({*found}), [it for it in found if found.count(it) > 1]


def test_every_page_is_in_the_site() -> None:
    def pages(nav: object) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        parts = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
        return [page for part in parts for page in pages(part)]

    listed = pages(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text("utf-8"))["nav"])
    hooks = (REPOSITORY / "e2e/docs/mkdocs_hooks.py").read_text("utf-8")
    of_root = dict(re.findall(r'"([A-Z_]+\.md)": "([a-z-]+\.md)"', hooks))
    assert all((REPOSITORY / name).exists() for name in of_root)
    there = {str(it.relative_to(DOCS)) for it in DOCS.rglob("*.md")} | {*of_root.values()}
    assert len(listed) == len({*listed})
    assert there <= {*listed}, "put it into nav in mkdocs.yml"
    assert {*listed} <= there


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: str(it.relative_to(REPOSITORY)))
def test_source_files_named_in_a_document_exist(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        return  # Its entries name the files of their time.
    text = document.read_text("utf-8")
    named = set(re.findall(r"`((?:bridge|sync|translators|tests|e2e)/[\w/]+\.py)\b", text))
    assert [it for it in sorted(named) if not (REPOSITORY / it).exists()] == []
    # The file alone, where a sentence has named its package before.
    folders = ("bridge", "sync", "translators", "tests", "e2e")
    files = {path.name for it in folders for path in (REPOSITORY / it).rglob("*.py")}
    assert {*re.findall(r"`(\w+\.py)`", text)} - files == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: str(it.relative_to(REPOSITORY)))
def test_modules_and_test_files_named_in_a_document_exist(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        return
    text = document.read_text("utf-8")
    modules = re.findall(r"python -m ((?:bridge|e2e|tests)(?:\.\w+)*)", text)
    paths = [REPOSITORY.joinpath(*it.split(".")) for it in modules]
    assert [it for it in paths if not it.with_suffix(".py").exists() and not it.is_dir()] == []
    test_files = {path.stem for it in ("e2e", "tests") for path in (REPOSITORY / it).rglob("*.py")}
    assert {*re.findall(r"^\| `(test_\w+)`", text, re.MULTILINE)} - test_files == set()
