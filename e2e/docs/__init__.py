"""The pages of docs/ that are made from the code, and the site that is made of all of them.

`python -m e2e.docs write` makes the pages anew (`pages`); tests compare what is in the repository
with what it would write, so that they are true at every commit. `links` knows the links and anchors
of a page, for the tests and for `hooks`, by which MkDocs builds the site (`make docs`).
"""
