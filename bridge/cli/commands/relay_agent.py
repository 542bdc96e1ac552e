"""`bridge relay-pod`: the program of the relay agents that `--relay-image` adds to the remote."""

from __future__ import annotations


def relay_pod() -> None:
    """Hand connections of remote pods to the bridge that created this relay agent."""
    from bridge.cli.run_until_signal import report_line, run
    from bridge.net.open_file_budget import raise_open_file_limit
    from bridge.observability.log_output import configure_logging
    from bridge.relay.reverse.relay_agent import serve
    from translators.relay.agent_pod import TERMINATION_GRACE_SECONDS

    configure_logging(verbose=False)
    raise_open_file_limit()
    run(lambda stop: serve(stop, notify=report_line), exit_within=TERMINATION_GRACE_SECONDS - 2.0)
