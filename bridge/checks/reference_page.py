"""docs/reference/checks.md, made of the table of checks:

    python -m bridge.checks.reference_page > docs/reference/checks.md

A test holds the file against this.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from bridge.checks.catalog import CHECKS

_HEAD = """\
# Checks

`bridge check --pre --kubeconfig remote.yaml` says before a join whether two clusters can be joined;
`bridge check [NODE]` says how a virtual node does that exists, or all that home has. Both only
look: nothing is changed in either cluster. Each finding has an id that stays, a severity, the side
that it is about, what was found, and what to do. `-o json` or `-o yaml` gives the same to programs.

Before a join the settings are the options of the command. Of a node that exists they are those of
its join: the Node records them in the annotation `cluster-bridge.io/options` (node selector, pods'
identity, network, source of metrics and of the serving certificate; no secrets).

| severity | meaning |
|---|---|
| `ok` | it is as it should be |
| `info` | worth knowing; or not checked, with the reason |
| `warning` | it works, and may not for long, or not for all; or it could not be found out |
| `error` | it does not work: the exit code is 1 |

Checks are independent: what cannot be found out hides nothing else, and what would need a cluster
that does not answer is told as not checked. Each ends after 12 seconds. `--wait 120` checks again
until nothing is an error, for two minutes at most. The checks ask with the credentials of the
kubeconfigs that are used here, which may be able to do less than a running bridge's.

<!-- Made by `python -m bridge.checks.reference_page`; a test holds it against that. -->
"""


def document() -> str:
    """The whole file."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "| id | what is so where all is well |"
    yield "|---|---|"
    for check in CHECKS.values():
        yield f"| [{check.id}](#{check.id.lower()}) | {check.title} |"
    for check in CHECKS.values():
        yield f'\n## <a id="{check.id.lower()}"></a>{check.id}: {check.title}\n'
        yield textwrap.fill(check.means, 100)
        yield "\n" + textwrap.fill(f"What to do: {check.hint}.", 100)


if __name__ == "__main__":
    sys.stdout.write(document())
