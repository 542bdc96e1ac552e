"""The command line: `bridge`, and `kubectl bridge` through its second name.

Options, their validation, and the output of results. Progress goes to stderr. A command imports
what it needs when it runs, so that `--help` and completion do not wait for it; nowhere else does a
function import. Exit codes: 0 success, 1 failure, 2 invalid options.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from bridge.cli import standard_streams

    standard_streams.prepare()
    if sys.argv[1:] == ["relay-pod"]:
        # Without the option parser: it takes 14 MB in each relay agent.
        from bridge.cli.commands.relay_agent import relay_pod

        relay_pod()
        return
    from bridge.cli.command_table import app
    from bridge.cli.run_until_signal import fail

    with standard_streams.checked(fail):
        app()
