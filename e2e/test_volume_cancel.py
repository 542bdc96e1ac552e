"""`bridge volume move` is killed during the swap, and `bridge volume cancel` undoes the move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.clusters.cluster import Cluster
from e2e.faults.faulty_proxy import Harm, Proxy, Rule
from e2e.kubectl import Json, get_one, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.storage_classes import local_path
from e2e.volume_transfers import WRITE, digest, node_of_home, run_volume, started
from e2e.workload_manifests import BUSYBOX, volume_claim
from translators.ownership_labels import DOMAIN

pytestmark = pytest.mark.usefixtures("provisioners", "home_provisioner")

#: Seconds for the whole copy, until the first write of the swap.
_COPIED = 60.0
#: Seconds of a hold that the kill ends.
_HELD = (60.0, 60.0)
_VOLUMES = "/api/v1/persistentvolumes"


@dataclass(frozen=True)
class _Moment:
    """A write of the swap at which the command is killed: before it is done, or after it.

    In ``path``, {source} is the name of the claim's PersistentVolume at the beginning."""

    harm: Harm
    method: str
    path: str

    def rule(self, source: str) -> Rule:
        path = self.path.format(source=source)
        return Rule(self.harm, 1.0, frozenset({self.method}), seconds=_HELD, path=f"^{path}$")


_TO_BE_DELETED = _Moment(Harm.DELAY, "DELETE", f"{_VOLUMES}/{{source}}")
_MARKED_AS_DELETED = _Moment(Harm.HOLD, "DELETE", f"{_VOLUMES}/{{source}}")
_ONE_DELETED = _Moment(Harm.DELAY, "PATCH", f"{_VOLUMES}/(?!{{source}}).*")
_BOTH_DELETED = _Moment(Harm.DELAY, "POST", _VOLUMES)
_ONE_CREATED = _Moment(Harm.HOLD, "POST", _VOLUMES)


@dataclass(frozen=True)
class _Moves:
    """Moves of the claim `data` from home to the virtual node, through a proxy."""

    storage: ProvisionedStorage
    proxy: Proxy
    log: Path
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.storage.bridged.namespace}/data"

    def kill(self, moment: _Moment, source: str) -> None:
        """Runs a move, and kills it at the moment."""
        self.proxy.rules = (moment.rule(source),)
        before = self.proxy.hits
        try:
            with started(
                self.proxy.kubeconfig, self.log, "move", self.name, *self.options
            ) as process:
                wait_for(
                    lambda: self.proxy.hits > before or process.poll() is not None,
                    f"the move arrives at {moment}",
                    seconds=_COPIED,
                )
                assert process.poll() is None, self.log.read_text()
        finally:
            self.proxy.rules = ()

    def record(self) -> Json:
        """The record of the unfinished move; {} if there is none."""
        annotations = self.storage.claims()["data"]["metadata"]["annotations"]
        found: Json = json.loads(annotations.get(f"{DOMAIN}/volume-move", "{}"))
        return found

    def require_undone(self, volume: Json, before: str) -> None:
        """Neither cluster has more than before the move, and the data is where it was."""
        storage = self.storage
        wait_for(lambda: not storage.remote_claims(), "the copy is deleted in the remote")
        wait_for(lambda: len(storage.volumes()) == 1, "the copy's PersistentVolume is deleted")
        wait_for(lambda: not storage.remote_volumes(), "the remote's PersistentVolume is deleted")
        assert storage.phases() == {"data": "Bound"}
        assert not self.record()
        assert not storage.bridged.home_pods()
        assert not storage.bridged.remote_pods()
        current = get_one(storage.home, "pv", storage.claims()["data"]["spec"]["volumeName"])
        for each in (volume, current):
            each["spec"]["claimRef"].pop("resourceVersion", None)
        assert current["spec"] == volume["spec"]
        assert current["metadata"]["name"] == volume["metadata"]["name"]
        assert digest(storage, "data", node_of_home(storage)) == before


@pytest.fixture
def moves(storage: ProvisionedStorage, home: Cluster, tmp_path: Path) -> Iterator[_Moves]:
    with (
        local_path(home, default=True),
        local_path(storage.remote, default=True),
        storage.home_class("some") as far,
        Proxy(home.kubeconfig, tmp_path / "proxy", address=home.host_address, seed=1) as proxy,
    ):
        there = ("--to", storage.bridged.node, "--storage-class", far)
        options = (*there, "--image", BUSYBOX, "--yes")
        yield _Moves(storage, proxy, tmp_path / "move.log", options)
        storage.clear()


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(_TO_BE_DELETED, id="before-the-first-deletion"),
        pytest.param(_MARKED_AS_DELETED, id="after-the-first-deletion"),
        pytest.param(_ONE_DELETED, id="one-volume-is-deleted"),
        pytest.param(_BOTH_DELETED, id="both-volumes-are-deleted"),
    ],
)
def test_move_that_is_killed_during_the_swap_is_cancelled(moves: _Moves, moment: _Moment) -> None:
    storage = moves.storage
    storage.bridged.apply(volume_claim("data", "local-path", "64Mi"))
    before = digest(storage, "data", node_of_home(storage), WRITE)
    (volume,) = storage.volumes()
    uid = storage.claims()["data"]["metadata"]["uid"]

    moves.kill(moment, volume["metadata"]["name"])
    assert moves.record()["phase"] == "swapping"
    cancelled = run_volume(storage, "cancel", moves.name)
    assert "has its own volume again" in cancelled
    moves.require_undone(volume, before)
    assert storage.claims()["data"]["metadata"]["uid"] == uid
    # The claim's provisioner still knows the volume.
    storage.bridged.kubectl("delete", "pvc", "data")
    wait_for(lambda: not storage.volumes(), "the volume is deleted")


def test_move_that_is_killed_after_the_swap_is_finished(moves: _Moves) -> None:
    """The claim has its data in the remote: cancel is refused, and names the command."""
    storage = moves.storage
    storage.bridged.apply(volume_claim("data", "local-path", "64Mi"))
    before = digest(storage, "data", node_of_home(storage), WRITE)
    (volume,) = storage.volumes()

    moves.kill(_ONE_CREATED, volume["metadata"]["name"])
    refused = run_volume(storage, "cancel", moves.name, succeeds=False)
    assert f"run `bridge volume move {moves.name} --to {storage.bridged.node}`" in refused
    run_volume(storage, "move", moves.name, *moves.options, "--delete-old")
    assert digest(storage, "data", storage.bridged.node) == before
    assert storage.phases() == {"data": "Bound"}
    assert not moves.record()
