"""Links, anchors, file names and module names in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from e2e.docs import external_resources, links
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


def test_links_outside_code_are_parsed() -> None:
    page = "a [b](c.md#d) `[no](x.md)` ![p](q.png)\n```\n[no](y.md)\n```\n[`code`](e.py)\n"
    assert [(it.line, it.path, it.anchor) for it in links.links(page)] == [
        (1, "c.md", "d"),
        (1, "q.png", ""),
        (5, "e.py", ""),
    ]
    assert links.Link(1, "https://example.com/#x").is_external
    assert not links.Link(1, "#x").is_external


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Two or more bridges for one node", "two-or-more-bridges-for-one-node"),
        ("`bridge rbac home`", "bridge-rbac-home"),
        ("Home's API server: where?", "homes-api-server-where"),
        ("A [link](x.md) & more", "a-link--more"),
    ],
)
def test_anchors_equal_githubs(heading: str, anchor: str) -> None:
    assert links.slug(heading) == anchor
    assert links.heading_anchors(f"# {heading}\n```\n# no heading\n```") == [anchor]


def test_explicit_anchors_are_found() -> None:
    assert links.heading_anchors('## <a id="x1"></a>X1: a thing') == ["x1", "x1-a-thing"]


def test_links_are_rewritten_or_removed() -> None:
    page = "[a](b.md) [`c`](d.py)\n```\n[a](b.md)\n```"
    changed = links.rewrite_links(page, lambda it: "z/" + it if it.endswith(".md") else None)
    assert changed == "[a](z/b.md) `c`\n```\n[a](b.md)\n```"


def test_external_resources_of_a_site_are_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no page"):
        external_resources.external_addresses(tmp_path)
    (tmp_path / "a.html").write_text(
        "<link rel=canonical href=https://a.example><a href=https://b.example>b</a>"
        "<script src=own.js></script><script src=//c.example/x.js></script>"
    )
    assert external_resources.external_addresses(tmp_path) == ["a.html: //c.example/x.js"]


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
