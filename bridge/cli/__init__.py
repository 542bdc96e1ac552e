"""The command line: `bridge`, and `kubectl bridge` through its second name.

Here belong options, their checks, and how results are shown. Progress goes to stderr. What a
command does is imported when it runs, so that `--help` answers at once, and what reads the options
is gone when a bridge runs (`bridge.cli.joining`). Exit codes: 0 done, 1 it failed, 2 the options
are wrong.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from bridge.cli import joining, stdio

    stdio.prepare()
    asked = joining.taken()
    if asked is not None:
        joining.serve(asked)
        return
    if sys.argv[1:] == ["relay-pod"]:
        # Without what reads options, of which it has none: 14 MB in each of these pods.
        from bridge.cli.relaypod import relay_pod

        relay_pod()
        return
    from bridge.cli.commands import app
    from bridge.cli.running import fail

    with stdio.checked(fail):
        app()
