"""The command line: `bridge`, and `kubectl bridge` through its second name.

Here belong options, their checks, and how results are shown. Progress goes to stderr. What a
command does is imported when it runs, so that `--help` answers at once, and what reads the options
is gone when a bridge runs (`bridge.cli.process_handover`). Exit codes: 0 done, 1 it failed, 2 the options
are wrong.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from bridge.cli import process_handover, stdio

    stdio.prepare()
    asked = process_handover.taken()
    if asked is not None:
        process_handover.serve(asked)
        return
    if sys.argv[1:] == ["relay-pod"]:
        # Without what reads options, of which it has none: 14 MB in each of these pods.
        from bridge.cli.relay_agent import relay_pod

        relay_pod()
        return
    from bridge.cli.command_group import app
    from bridge.cli.runner import fail

    with stdio.checked(fail):
        app()
