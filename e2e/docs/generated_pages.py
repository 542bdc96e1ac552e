"""The generated pages of docs/, and the functions that generate them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.docs import chart_page, cli_page, translation_page

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"

#: Page of docs/ → the function that returns its text.
GENERATED_PAGES: Mapping[str, Callable[[], str]] = {
    "reference/chart-values.md": chart_page.page,
    "reference/cli.md": cli_page.page,
    "reference/translation.md": translation_page.page,
}
