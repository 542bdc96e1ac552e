"""The auditor finds every loss of a volume, and nothing where a deletion is explained."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from e2e.audit.findings import Kind
from e2e.audit.tokens import TOKEN, checksums
from e2e.audit.volumes import Volumes

Json = dict[str, Any]

NODE = "virtual"
OWNED = {"cluster-bridge.io/home": "abc", "cluster-bridge.io/node": NODE}
TOKENS = {"disk-uid": "sum"}


class World:
    """One volume, as it should be."""

    def __init__(self, policy: str = "Delete") -> None:
        size = {"storage": "8Mi"}
        self.claim: Json = {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "shop", "uid": "home-uid"},
            "spec": {"volumeName": "pvc-home-uid"},
            "status": {"phase": "Bound", "capacity": size},
        }
        self.volume: Json = {
            "kind": "PersistentVolume",
            "metadata": {"name": "pvc-home-uid", "uid": "volume-uid"},
            "spec": {
                "capacity": size,
                "persistentVolumeReclaimPolicy": policy,
                "claimRef": {"namespace": "shop", "name": "data", "uid": "home-uid"},
                "csi": {"driver": "volumes.cluster-bridge.io", "volumeHandle": "r/shop-h/data-1"},
            },
        }
        self.remote: Json = {
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data-1",
                "namespace": "shop-h",
                "uid": "remote-uid",
                "labels": OWNED,
                "annotations": {"cluster-bridge.io/home-uid": "home-uid"},
            },
            "spec": {"volumeName": "disk"},
            "status": {"phase": "Bound", "capacity": size},
        }
        self.disk: Json = {
            "kind": "PersistentVolume",
            "metadata": {"name": "disk", "uid": "disk-uid"},
            "spec": {"hostPath": {"path": "/disk"}},
        }
        self.volumes = Volumes(NODE)
        self.home = [self.claim, self.volume]
        self.there = [self.remote, self.disk]

    def kinds(self, **tokens: str) -> set[Kind]:
        found = self.volumes.findings(self.home, self.there, tokens or TOKENS)
        return {it.kind for it in found}


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_agreeing_volume_has_no_findings(policy: str) -> None:
    world = World(policy)
    assert not world.kinds()
    assert not world.kinds()


def test_deletion_with_policy_delete_leaves_nothing() -> None:
    world = World()
    world.kinds()
    world.home = []
    assert world.kinds() == {Kind.LEAKED}
    world.there = []
    assert not world.kinds()


def test_released_volume_with_policy_delete_is_stuck() -> None:
    world = World()
    world.home, world.there = [world.volume], []
    assert world.kinds() == {Kind.STUCK}


@pytest.mark.parametrize("is_volume_deleted", [False, True])
def test_retained_data_stays(is_volume_deleted: bool) -> None:
    world = World("Retain")
    world.kinds()
    world.home = [] if is_volume_deleted else [world.volume]
    assert not world.kinds()
    world.there = []
    assert world.kinds() == {Kind.LOST}


@pytest.mark.parametrize("lost", ["remote", "disk"])
def test_lost_object_of_a_bound_claim(lost: str) -> None:
    world = World()
    world.kinds()
    world.there.remove(getattr(world, lost))
    assert world.kinds() == {Kind.LOST}


def test_replaced_claim_in_the_remote_is_lost() -> None:
    world = World()
    world.kinds()
    world.remote["metadata"]["uid"] = "another"
    assert world.kinds() == {Kind.LOST}


def test_both_objects_lost_at_home_and_in_the_remote() -> None:
    """The bridge deleted the volume although home's PVC exists."""
    world = World()
    world.kinds()
    world.home, world.there = [world.claim], []
    assert world.kinds() == {Kind.LOST}


def test_other_content_is_lost() -> None:
    world = World()
    world.kinds()
    assert world.kinds(**{"disk-uid": "other"}) == {Kind.LOST}
    assert world.kinds(another="sum") == {Kind.LOST}


def test_second_claim_for_one_home_claim() -> None:
    world = World()
    second = copy.deepcopy(world.remote)
    second["metadata"] |= {"name": "data-2", "uid": "second"}
    world.there.append(second)
    assert world.kinds() == {Kind.DUPLICATED}


def test_two_volumes_with_the_same_data() -> None:
    world = World()
    second = copy.deepcopy(world.volume)
    second["metadata"] |= {"name": "other", "uid": "second"}
    world.home.append(second)
    assert world.kinds() == {Kind.DUPLICATED}


def test_other_capacity_and_unfinished_claim() -> None:
    world = World()
    world.remote["status"]["capacity"] = {"storage": "16Mi"}
    assert world.kinds() == {Kind.DISAGREES}
    world = World()
    world.remote["metadata"]["annotations"]["cluster-bridge.io/unfinished"] = "true"
    assert world.kinds() == {Kind.DISAGREES}


def test_volumes_of_other_drivers_are_ignored() -> None:
    world = World()
    world.volume["spec"]["csi"]["driver"] = "example.com"
    world.there = []
    assert not world.kinds()


def test_tokens_are_read_from_the_folders_of_volumes(tmp_path: Path) -> None:
    world = World()
    assert checksums([world.disk]) == {}
    world.disk["spec"]["hostPath"]["path"] = str(tmp_path)
    (tmp_path / TOKEN).write_bytes(b"first")
    before = checksums([world.disk])
    (tmp_path / TOKEN).write_bytes(b"second")
    assert before.keys() == {"disk-uid"}
    assert checksums([world.disk]) != before


def test_contents_are_counted_once_they_were_read() -> None:
    world = World()
    world.kinds(other="sum")
    assert world.volumes.counts() == {"volumes": 1, "contents of volumes": 0}
    world.kinds()
    assert world.volumes.counts() == {"volumes": 1, "contents of volumes": 1}
