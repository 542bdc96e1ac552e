"""Generates pages of docs/ from the code, and parts of the site that MkDocs builds of docs/.

`python -m e2e.docs write` generates the pages (`generated_pages`); tests compare them with the
repository, so that they are current at every commit. `links` parses the links and anchors of a
page, for the tests and for the site (`mkdocs_hooks`, `make docs`).
"""
