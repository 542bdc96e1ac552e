"""`bridge run`: its sources exclude each other, and each has options of its own."""

from __future__ import annotations

import pytest

from tests.bridge.cli.conftest import Invoke


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--remotes", "a", "--cluster-profiles", "b"), "exclude each other"),
        (("--config", "a", "--cluster-profiles", "b"), "--config and --cluster-profiles exclude"),
        (("--remotes", "a", "--join-options", "b"), "--join-options: use with --cluster-profiles"),
        (("--config", "a", "--home-context", "b"), "use with --remotes or --cluster-profiles"),
        (("--config", "a", "--health-port", "1"), "--health-port: use with --remotes or"),
        (("--config", "a", "--token-secret", "b"), "--token-secret: use with --remotes or"),
        (("--remotes", "a", "--token-secret", "B"), '--token-secret: "B" is not a Secret'),
        (("--cluster-profiles", "a", "--join-options", "/absent"), "/absent: cannot be read"),
        ((), "--config is missing"),
    ],
)
def test_wrong_use_is_rejected(invoke: Invoke, arguments: tuple[str, ...], message: str) -> None:
    done = invoke("run", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
