"""Golden files of the product seen from outside, as recorded at `e2e.revisions.RELEASE_BEFORE`.

A scenario runs commands and a bridge of one source tree as child processes against two fake API
servers with the objects of `inputs`, and collects their structured output and the objects that the
bridge writes. `results` has one file for each scenario. Prose, times, UIDs and other random values
are not recorded (`tests.golden.redaction`).

`python -m tests.golden` writes the results of this tree, and with ``--rev REV`` those of a
revision; ``--check`` compares instead. The pairs of `tests.translators.golden` show single
translations with their texts.
"""
