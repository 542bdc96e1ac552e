"""Volumes while the bridge is killed at its writes, replicas change and API servers are away: every
claim gets exactly one volume, which keeps its data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.bridge_process import Bridge
from e2e.clusters.cluster import API_SERVER
from e2e.faults.faulty_proxy import Harm, Proxy
from e2e.faults.process_kills import held_writes
from e2e.kubectl import wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.storage_classes import IMMEDIATE, hostpath
from e2e.workload_manifests import volume_claim

pytestmark = pytest.mark.usefixtures("provisioners")

#: Seconds for what follows an outage or a takeover: the bridge retries with growing waits.
AFTER_OUTAGE = 120.0
#: Seconds for one step of the kills: a write, or the end of a phase.
_STEP = 60.0
#: Claims that are provisioned at once.
_NAMES = [f"v{number}" for number in range(6)]
_WRITE = "echo kept > /data/file; sleep 3600"


@contextmanager
def _slow_class(storage: ProvisionedStorage) -> Iterator[str]:
    """A class of home whose volumes take the remote two seconds each."""
    with (
        hostpath(storage.remote, binding=IMMEDIATE, parameters={"provisionDelay": "2s"}) as there,
        storage.home_class("slow", remote_class=there) as name,
    ):
        yield name


def _begin(storage: ProvisionedStorage, storage_class: str) -> None:
    """Creates the claims and a pod for each, and waits until the first is being provisioned."""
    for name in _NAMES:
        storage.bridged.apply(volume_claim(name, storage_class, "8Mi"))
        storage.bridged.apply(storage.node_pod(name, name))
    wait_for(lambda: bool(storage.remote_claims()), "the first volume is being provisioned")


def _require_one_volume_each(storage: ProvisionedStorage) -> None:
    wait_for(
        lambda: storage.phases() == dict.fromkeys(_NAMES, "Bound"),
        "every claim is Bound",
        seconds=AFTER_OUTAGE,
    )
    storage.wait_until_ready(*_NAMES)
    assert len(storage.remote_claims()) == len(storage.volumes()) == len(_NAMES)


def test_api_servers_are_away_while_claims_are_provisioned(storage: ProvisionedStorage) -> None:
    """The remote's API server and then home's are killed, and away for some seconds each."""
    with _slow_class(storage) as name:
        _begin(storage, name)
        for cluster in (storage.remote, storage.home):
            cluster.stop_component(API_SERVER, grace=0)
            cluster.start_api_server()
        _require_one_volume_each(storage)


def test_standby_takes_over_while_claims_are_provisioned(
    storage: ProvisionedStorage, tmp_path: Path
) -> None:
    """The leader is killed; its standby replica continues with what the leader has begun."""
    leader = storage.bridged.bridge
    standby = Bridge(leader.home, leader.remote, tmp_path / "standby.log", leader.args)
    standby.start(until="waiting for the lease")
    try:
        with _slow_class(storage) as name:
            _begin(storage, name)
            leader.kill()
            _require_one_volume_each(storage)
            storage.clear()
    finally:
        standby.kill()
        print(standby.log.read_text())
    leader.start()


class _Killer:
    """Kills the bridge at its writes of volumes, each time in the next of these ways."""

    def __init__(self, bridge: Bridge, proxies: Sequence[Proxy], harms: Sequence[Harm]) -> None:
        self._bridge, self._proxies = bridge, proxies
        self._harms = itertools.cycle(harms)

    def kill_until(self, done: Callable[[], bool], what: str) -> int:
        """Kills and restarts the bridge at writes until ``done``; returns how often. Writes of
        its start pass, or confirmations would never end."""
        kills = 0
        while not done():
            with held_writes(*self._proxies, harm=next(self._harms)):
                before = self._hits()
                wait_for(
                    lambda before=before: self._hits() > before or done(),  # type: ignore[misc]
                    f"a write, or {what}",
                    seconds=_STEP,
                )
                if self._hits() > before:
                    kills += 1
                    self._bridge.kill()
            if self._bridge.process is None:
                self._bridge.start()
        return kills

    def _hits(self) -> int:
        return sum(proxy.hits for proxy in self._proxies)


@pytest.fixture
def proxies(storage: ProvisionedStorage, tmp_path: Path) -> Iterator[list[Proxy]]:
    """The bridge joins through a proxy to each API server."""
    bridged, bridge = storage.bridged, storage.bridged.bridge
    clusters, args = (bridge.home, bridge.remote), bridge.args
    with ExitStack() as stack:
        found = [
            stack.enter_context(
                Proxy(
                    cluster.kubeconfig,
                    tmp_path / f"proxy-{cluster.name}",
                    address=cluster.host_address,
                    seed=1,
                )
            )
            for cluster in (bridged.home, bridged.remote)
        ]
        bridge.stop()
        bridge.home = replace(bridged.home, kubeconfig=found[0].kubeconfig)
        bridge.remote = replace(bridged.remote, kubeconfig=found[1].kubeconfig)
        bridge.args = (*args, "--home-api-address", f"{bridged.home.node_ip}:6443")
        bridge.start()
        yield found
        bridge.kill()
        bridge.home, bridge.remote = clusters
        bridge.args = args
        bridge.start()


@pytest.mark.timeout(900, func_only=True)
@pytest.mark.parametrize(
    "harms",
    [
        pytest.param([Harm.HOLD], id="done"),
        pytest.param([Harm.DELAY, Harm.HOLD], id="not-done-and-done"),
    ],
)
def test_killed_at_writes(
    storage: ProvisionedStorage, proxies: list[Proxy], harms: list[Harm]
) -> None:
    """A volume is provisioned, grows and is deleted, while the bridge is killed at its writes:
    after the API server has carried one out, or before and after."""
    bridged = storage.bridged
    killer = _Killer(bridged.bridge, proxies, harms)
    with (
        hostpath(storage.remote, binding=IMMEDIATE) as there,
        storage.home_class("killed", remote_class=there) as name,
    ):
        bridged.apply(volume_claim("data", name, "8Mi"))
        bridged.apply(storage.node_pod("a", "data", _WRITE))
        kills = killer.kill_until(lambda: storage.phases() == {"data": "Bound"}, "it is Bound")
        assert kills
        killer.kill_until(lambda: _data(storage) == "kept", "the pod has written")
        (claim,) = storage.remote_claims()

        grow = {"spec": {"resources": {"requests": {"storage": "16Mi"}}}}
        bridged.kubectl("patch", "pvc", "data", "-p", json.dumps(grow))
        kills = killer.kill_until(lambda: _capacity(storage) == "16Mi", "it has grown")
        assert kills
        assert _data(storage) == "kept"
        assert [it["metadata"]["uid"] for it in storage.remote_claims()] == [
            claim["metadata"]["uid"]
        ]

        bridged.kubectl("delete", "pod/a", "pvc/data", "--wait=false")
        kills = killer.kill_until(lambda: not storage.volumes(), "the volume is deleted")
        assert kills
        assert not storage.remote_claims()


def _data(storage: ProvisionedStorage) -> str:
    """The file of the pod, read past the bridge; "" without a pod."""
    return storage.remote.kubectl(
        *("exec", "-n", storage.bridged.remote_namespace, "a", "--", "cat", "/data/file"),
        check=False,
    ).stdout.strip()


def _capacity(storage: ProvisionedStorage) -> str:
    return str(storage.claims()["data"]["status"]["capacity"]["storage"])
