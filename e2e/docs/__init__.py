"""Generated pages of docs/, and the site that is built from all pages.

`python -m e2e.docs write` generates the pages (`generated_pages`); tests compare them with the
repository, so that they are correct in every commit. `links` parses links and anchors of a page,
for the tests and for `mkdocs_hooks`, with which MkDocs builds the site (`make docs`).
"""
