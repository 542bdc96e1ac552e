"""Which pages are made from the code, and from what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.docs import cli_page, translation_page

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"

#: File of docs/ → what is in it.
MADE: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": cli_page.page,
    "reference/translation.md": translation_page.page,
}
