"""The wait for a native node: a kubelet that gave up is started again, but not for ever."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from e2e.clusters import Settings, native_node, specs
from e2e.clusters.addresses import Plan
from e2e.clusters.errors import StartFailed
from e2e.clusters.native_site import Site
from e2e.clusters.processes import Supervisor
from e2e.clusters.startup_client import StartupClient


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A cluster whose parts are programs of the test, without a network namespace."""
    monkeypatch.setattr(
        Site,
        "supervisor",
        Supervisor(tmp_path / "records", tmp_path / "logs", tmp_path / "join", Path("-")),
    )
    found = Site(Settings(prefix="none"), specs(["home"])[0], Plan(IPv4Network("10.0.0.0/8"), 0))
    monkeypatch.setattr(
        Site, "api", StartupClient("127.0.0.1", tmp_path / "no", found.pair("admin"))
    )
    return found


def _started(site: Site, kubelet: str) -> None:
    for name in (native_node.CONTAINERD, native_node.KUBE_PROXY):
        site.supervisor.start(name, ["sleep", "60"])
    site.supervisor.start(native_node.KUBELET, ["sh", "-c", kubelet])


def _stop(site: Site) -> None:
    for name in native_node.COMPONENTS:
        site.supervisor.stop(name, grace=0)


def test_a_kubelet_that_ends_once_is_started_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two of them listen on the machine's one socket of device plugins at once."""
    up = tmp_path / "second"
    _started(
        site, f"[ -e {tmp_path}/first ] && touch {up} && exec sleep 60; touch {tmp_path}/first"
    )
    monkeypatch.setattr(
        StartupClient, "ready_nodes", lambda _: set(site.node_names) if up.exists() else set()
    )
    try:
        native_node.wait(site)
        assert site.supervisor.running(native_node.KUBELET)
    finally:
        _stop(site)


def test_a_kubelet_that_always_ends_is_an_error_with_its_log(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _started(site, f"echo started >>{tmp_path}/starts; echo no device; exit 1")
    monkeypatch.setattr(StartupClient, "ready_nodes", lambda _: set())
    try:
        with pytest.raises(StartFailed, match="no device"):
            native_node.wait(site)
    finally:
        _stop(site)
    assert (tmp_path / "starts").read_text().count("started") == 1 + native_node.KUBELET_RESTARTS
