"""Hooks of MkDocs for the site of docs/ (`hooks` in mkdocs.yml).

- Anchors are GitHub's, so that links work in both.
- The site includes pages of the repository's root, by the names of `ROOT`.
- A link to a file that is not a page, such as code, becomes plain text, because the site does not
  contain the file.
"""

from __future__ import annotations

import posixpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from e2e.docs import links
from e2e.docs.generated_pages import REPOSITORY

#: Page of the repository's root → its path in the site.
ROOT = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "THREAT_MODEL.md": "threat-model.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Uses GitHub's anchors."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = links.slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root."""
    for name, page in ROOT.items():
        files.append(File.generated(config, page, abs_src_path=str(REPOSITORY / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links for the site."""
    del config
    here = page.file.src_uri
    source = next((root for root, name in ROOT.items() if name == here), f"docs/{here}")

    def change(target: str) -> str | None:
        link = links.Link(0, target)
        if link.is_external or not link.path:
            return target
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), link.path))
        if there == "README.md":
            there = "docs/index.md"
        name = ROOT.get(there, there.removeprefix("docs/") if there.startswith("docs/") else "")
        if not name or files.get_file_from_path(name) is None:
            return None
        anchor = f"#{link.anchor}" if link.anchor else ""
        return posixpath.relpath(name, posixpath.dirname(here) or ".") + anchor

    return links.rewrite_links(markdown, change)
