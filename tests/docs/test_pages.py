"""The pages of docs/: those that are made from the code are as it would make them."""

from __future__ import annotations

import pytest

from e2e.docs import cli_page, generated_pages, translation_page
from translators.pods import field_rules


@pytest.mark.parametrize("name", generated_pages.MADE)
def test_a_page_that_is_made_is_up_to_date(name: str) -> None:
    there = (generated_pages.DOCS / name).read_text("utf-8")
    assert generated_pages.MADE[name]() == there, "run make docs-write"


def test_every_rule_has_its_reason_on_the_page() -> None:
    page = translation_page.page()
    for rule in field_rules.TABLE.values():
        assert rule.reason.replace("|", "\\|") in page


def test_options_show_what_they_take_and_what_they_are_unless_given() -> None:
    page = cli_page.page()
    assert "| `--kubeconfig` `PATH` | Kubeconfig of the remote cluster. | required |" in page
    assert "`--network` `auto\\|flat\\|relay\\|none`" in page
    assert "`--yes`, `-y`" in page
    assert "bridge rbac namespace [OPTIONS] NAME...\n" in page
