"""Two bridges with a relay: the successor takes over the Services."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.bridge_process import REGISTERED
from e2e.conftest import Bridged
from e2e.kubectl import wait_for
from e2e.standby_replica import StandbyBridge, standby_bridge
from e2e.test_relay import (
    RequestLoop,
    address,
    all_ready,
    apart,  # noqa: F401  # a fixture
    ask,
    client,
    deployment,
    service,
    slices,
)

#: Ports of each bridge: the second cannot use the first one's.
FIRST, SECOND = range(31100, 31164), range(31200, 31264)


@pytest.fixture
def other(bridged: Bridged, tmp_path: Path) -> Iterator[StandbyBridge]:
    """A second bridge of the node, as the standby replica."""
    with standby_bridge(bridged, tmp_path) as made:
        made.bridge.args = (*made.bridge.args, f"--relay-ports={SECOND[0]}-{SECOND[-1]}")
        made.stand_by()
        yield made


def _ports(bridged: Bridged) -> list[int]:
    """All published endpoints."""
    return [port["port"] for it in slices(bridged) for port in it["ports"]]


@pytest.mark.join("--network=relay", f"--relay-ports={FIRST[0]}-{FIRST[-1]}")
def test_successor_takes_over_the_services(bridged: Bridged, other: StandbyBridge) -> None:
    """After a crash, and back again after a stop."""
    bridged.apply(service("web") + deployment("web", "far", bridged.node, 2) + client(bridged))
    all_ready(bridged, 3)
    wait_for(lambda: len(_ports(bridged)) == 2, "an endpoint for each pod")
    host = address(bridged, "web")
    wait_for(lambda: ask(bridged, host).startswith("web-far"), "a pod in the remote answers")
    assert all(port in FIRST for port in _ports(bridged))

    bridged.bridge.kill()
    other.bridge.wait_for_log(REGISTERED)
    began = time.monotonic()
    wait_for(
        lambda: len(found := _ports(bridged)) == 2 and all(port in SECOND for port in found),
        "nothing leads to the dead one",
    )
    wait_for(lambda: ask(bridged, host).startswith("web-far"), "it carries")
    print(f"carried {time.monotonic() - began:.2f} s after the takeover")
    time.sleep(1)  # for kube-proxy
    seen = RequestLoop(bridged, host, 100).finish()
    assert all(name.startswith("web-far") for name in seen), seen

    bridged.bridge.start(until="standing by")
    assert all(port in SECOND for port in _ports(bridged)), "who stands by publishes nothing"
    registered = bridged.bridge.log.read_text().count(REGISTERED)
    other.bridge.stop()
    bridged.bridge.wait_for_log(REGISTERED, times=registered + 1)
    wait_for(
        lambda: len(found := _ports(bridged)) == 2 and all(port in FIRST for port in found),
        "the first is back",
    )
    wait_for(lambda: ask(bridged, host).startswith("web-far"), "it carries")
