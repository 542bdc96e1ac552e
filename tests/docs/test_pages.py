"""The generated pages of docs/ are current."""

from __future__ import annotations

import re

import pytest

from e2e.docs import cli_page, generated_pages, translation_page
from translators.pods import field_rules


@pytest.mark.parametrize("name", generated_pages.GENERATED_PAGES)
def test_generated_page_is_current(name: str) -> None:
    there = (generated_pages.DOCS / name).read_text("utf-8")
    assert generated_pages.GENERATED_PAGES[name]() == there, "run make docs-write"


def test_every_rule_has_its_reason_on_the_page() -> None:
    page = translation_page.page()
    for rule in field_rules.TABLE.values():
        assert rule.reason.replace("|", "\\|") in page


def test_translation_page_names_no_code() -> None:
    page = translation_page.page().partition("## Examples")[0]
    words = re.findall(r"`([^`\n]+)`", page)

    assert len(words) > 200
    assert [it for it in words if re.search(r"\.py|^(sync|translators|bridge)\b|_[a-z]", it)] == []
    assert ".go" not in page


def test_options_show_their_type_and_default() -> None:
    page = cli_page.page()
    assert "| `--kubeconfig` `PATH` | Kubeconfig of the remote cluster. | required |" in page
    assert "`--network` `auto\\|flat\\|relay\\|none`" in page
    assert "`--yes`, `-y`" in page
    assert "bridge rbac namespace [OPTIONS] NAME...\n" in page
