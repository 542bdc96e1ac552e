"""`bridge relay-pod`: what runs in the relay pods that `--relay-image` has the bridge make."""

from __future__ import annotations


def relay_pod() -> None:
    """Hand connections of the remote's pods to a bridge.

    A bridge that joins with --relay-image makes pods that run this in the remote. There is no use
    for it elsewhere.
    """
    from bridge.cli.runner import run, step
    from bridge.net.limits import raise_open_file_limit
    from bridge.observability.logging import configure_logging
    from bridge.relay.reverse.agent import serve
    from translators.relay.agent_pod import TERMINATION_GRACE_SECONDS

    configure_logging(verbose=False)
    raise_open_file_limit()
    run(lambda stop: serve(stop, told=step), end_by=TERMINATION_GRACE_SECONDS - 2.0)
