"""The command line: `bridge`, and `kubectl bridge` through its second name.

Options, their validation, and the output of results. Progress goes to stderr. A command imports
what it needs when it runs, so that `--help` answers at once, and a running bridge keeps nothing of
the option parser in memory (`bridge.cli.reexec_to_free_memory`). Exit codes: 0 success, 1 failure,
2 invalid options.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from bridge.cli import reexec_to_free_memory, standard_streams

    standard_streams.prepare()
    request = reexec_to_free_memory.restarted_request()
    if request is not None:
        reexec_to_free_memory.serve(request)
        return
    if sys.argv[1:] == ["relay-pod"]:
        # Without the option parser: it takes 14 MB in each relay agent.
        from bridge.cli.commands.relay_agent import relay_pod

        relay_pod()
        return
    from bridge.cli.command_table import app
    from bridge.cli.run_until_signal import fail

    with standard_streams.checked(fail):
        app()
