"""`bridge volume move`, `copy` and `cancel`: data, refusals, and interruptions at each step."""

from __future__ import annotations

import asyncio
import filecmp
from pathlib import Path
from typing import Any

import pytest

from bridge.base.command_error import PreflightError
from bridge.volumes import claim_moves, transfer_pods, volume_scripts
from bridge.volumes.transfer_record import ANNOTATION_COPY, ANNOTATION_MOVE
from sync.kube.api_resources import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    VOLUME_ATTACHMENTS,
)
from sync.kube.client import KubeClient
from tests.bridge.volumes.volume_world import CLAIM, HOME_NODE, NAMESPACE, NODE, VolumeWorld
from tests.fakeapi.client_config import client_config_for

pytestmark = pytest.mark.long


def same_files(one: Path, other: Path) -> bool:
    """Whether both directories have the same files, with the same content and mode."""
    names = sorted(str(it.relative_to(one)) for it in one.rglob("*"))
    if names != sorted(str(it.relative_to(other)) for it in other.rglob("*")):
        return False
    files = [it for it in names if (one / it).is_file()]
    modes = [(one / it).lstat().st_mode == (other / it).lstat().st_mode for it in names]
    return all(modes) and not any(filecmp.cmpfiles(one, other, files, shallow=False)[1:])


async def cancel(world: VolumeWorld, name: str = CLAIM) -> str:
    return await claim_moves.cancel(
        world.client, NAMESPACE, name, timeout=10, notify=world.notified.append
    )


def assert_moved(world: VolumeWorld, original: Path) -> None:
    """The claim has the data in the remote, and a second one the old data."""
    (old,) = world.claims() - {CLAIM}
    assert world.is_remote()
    assert not world.is_remote(old)
    assert world.data(old) == original
    assert same_files(world.data(), original)
    for name in (CLAIM, old):
        claim, volume = world.claim(name), world.volume(name)
        assert claim["status"]["phase"] == "Bound"
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        assert volume["metadata"]["finalizers"] == ["cluster-bridge.io/volume"]
        assert not {ANNOTATION_MOVE, ANNOTATION_COPY} & claim["metadata"]["annotations"].keys()
    assert not world.home.objects(PODS, NAMESPACE)
    assert len(world.home.objects(PERSISTENT_VOLUMES)) == 2


async def test_move_swaps_the_volumes(world: VolumeWorld) -> None:
    original, uid = world.data(), world.claim()["metadata"]["uid"]
    result = await world.transfer()
    assert result is not None
    assert result.copied is not None
    assert result.copied.files == 4
    assert world.claim()["metadata"]["uid"] == uid
    assert_moved(world, original)


async def test_moved_volume_moves_back(world: VolumeWorld) -> None:
    await world.transfer(delete_old=True)
    there = world.data()
    assert world.is_remote()
    result = await world.transfer(to=HOME_NODE)
    assert result is not None
    assert not world.is_remote()
    assert same_files(world.data(), there)
    assert world.data(result.target) == there


async def test_copy_creates_a_claim(world: VolumeWorld) -> None:
    original = world.data()
    await world.transfer(new_name="other", storage_class="far")
    assert world.data() == original
    assert same_files(world.data("other"), original)
    assert ANNOTATION_COPY not in world.claim("other")["metadata"]["annotations"]
    await world.home.until(lambda: not world.home.objects(PODS, NAMESPACE))
    with pytest.raises(PreflightError, match="shop/other exists"):
        await world.transfer(new_name="other")


async def test_copy_begins_when_pods_run_commands(world: VolumeWorld) -> None:
    """Before their status reports that they run, which kubelets write up to a second later."""
    world.reports_start, world.refused_commands = False, 3
    original = world.data()
    await world.transfer(new_name="other")
    assert same_files(world.data("other"), original)
    assert not world.refused_commands


async def test_pod_that_never_runs_is_reported(world: VolumeWorld) -> None:
    world.reports_start, world.refused_commands = False, 10**6
    with pytest.raises(PreflightError, match=r"not Ready after 1 s: pod .*: ContainerCreating"):
        await world.transfer(timeout=1.0)
    # The time between two commands grows.
    assert 10**6 - world.refused_commands <= 30


async def test_dry_run_changes_nothing(world: VolumeWorld) -> None:
    before = world.home.store.history.revision
    result = await world.transfer(dry_run=True)
    assert result is not None
    assert result.plan is not None
    assert result.plan.storage_class == "far"
    assert world.home.store.history.revision == before
    assert {it.query.get("dryRun") for it in world.home.writes()} == {"All"}


# -- refusals ----------------------------------------------------------------------------


async def test_claim_in_use_is_refused(world: VolumeWorld) -> None:
    world.put_user()
    uses: list[dict[str, Any]] = [{}, {"new_name": "other"}]
    for changes in uses:
        with pytest.raises(PreflightError, match="app uses PersistentVolumeClaim shop/data"):
            await world.transfer(**changes)
    world.put_user(phase="Succeeded")
    before = {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}
    world.home.update(PODS, "app", before, NAMESPACE)
    assert await world.transfer() is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"claim": "none"}, "there is no PersistentVolumeClaim shop/none"),
        ({"to": "none"}, "there is no node none; the nodes are burst, worker"),
        ({"to": HOME_NODE}, "can use PersistentVolumeClaim shop/data already"),
        ({"storage_class": "near"}, "StorageClass near has no volumes on node burst; use far"),
        ({"storage_class": "none"}, "there is no StorageClass none"),
    ],
)
async def test_impossible_move_is_refused(
    world: VolumeWorld, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PreflightError, match=message):
        await world.transfer(**changes)
    assert not [it for it in world.home.writes() if it.query.get("dryRun") != "All"]


async def test_block_device_is_refused(world: VolumeWorld) -> None:
    world.put_claim("device", volumeMode="Block")
    world.act()
    with pytest.raises(PreflightError, match="shop/device is a block device"):
        await world.transfer(claim="device")


async def test_node_that_is_not_ready_is_refused(world: VolumeWorld) -> None:
    status = {"conditions": [{"type": "Ready", "status": "False"}]}
    world.home.update(NODES, NODE, {"status": status})
    with pytest.raises(PreflightError, match="node burst is not Ready"):
        await world.transfer()


# -- failures ----------------------------------------------------------------------------


async def test_mismatch_keeps_the_source(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte that changes on its way is found, and the next run succeeds."""
    original = world.data()
    send = volume_scripts.RECEIVE
    spoil = f"{send}\nprintf x | dd of=large bs=1 seek=1000 conv=notrunc 2>/dev/null"
    monkeypatch.setattr(volume_scripts, "RECEIVE", spoil)
    with pytest.raises(PreflightError, match="the copy differs from the source"):
        await world.transfer()
    assert world.data() == original
    assert world.claim()["status"]["phase"] == "Bound"
    monkeypatch.setattr(volume_scripts, "RECEIVE", send)
    await world.transfer()
    assert_moved(world, original)


@pytest.mark.parametrize("script", ["RECEIVE", "SEND"])
async def test_failing_script_is_reported(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    failing = "echo no space left >&2; exit 1"
    monkeypatch.setattr(volume_scripts, script, failing)
    with pytest.raises(PreflightError, match=r"the volume cannot be .*: no space left"):
        await world.transfer()
    await world.home.until(lambda: not world.home.objects(PODS, NAMESPACE))


async def test_large_files_are_compared_in_parts(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference in the last of five parts is found."""
    monkeypatch.setattr(volume_scripts, "PART", 65536)
    assert (await world.transfer(new_name="other")) is not None
    assert same_files(world.data("other"), world.data())
    change = "printf x | dd of=large seek=299999 bs=1 conv=notrunc; touch -d @1000000000 large"
    receive = f"{volume_scripts.RECEIVE} && {{ {change}; }} >&2"
    monkeypatch.setattr(volume_scripts, "RECEIVE", receive)
    with pytest.raises(PreflightError, match="the copy differs from the source"):
        await world.transfer()


async def test_change_of_the_source_after_its_copy_is_found(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if size and time of modification are unchanged."""
    change = "printf x | dd of=large conv=notrunc 2>&1; touch -d @1000000000 large"
    monkeypatch.setattr(volume_scripts, "SEND", f"{volume_scripts.SEND}\n{change} >&2")
    original = world.data()
    with pytest.raises(PreflightError, match="the source changed while it was copied"):
        await world.transfer()
    assert world.data() == original
    assert not world.is_remote()


async def test_pod_that_starts_during_the_copy_stops_the_move(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod whose start the command did not see before it deleted the PersistentVolume may have
    written: the claim has its own volume again."""
    original, volume = world.data(), world.volume()["metadata"]["name"]

    async def starts() -> None:
        path = f"*/persistentvolumes/{volume}"
        await world.home.until(lambda: world.home.requests("DELETE", path))
        world.put_user()

    async with asyncio.TaskGroup() as group:
        group.create_task(starts())
        with pytest.raises(PreflightError, match=r"app has started .*nothing was moved"):
            await world.transfer()
    assert world.data() == original
    assert world.claim()["status"]["phase"] == "Bound"
    world.home.remove(PODS, "app", NAMESPACE)
    await world.transfer()
    assert_moved(world, original)


async def test_swap_waits_until_the_volume_is_detached(world: VolumeWorld) -> None:
    """Home detaches by the PersistentVolume, which must exist until then."""
    volume = world.volume()
    name, folder = volume["metadata"]["name"], volume["spec"]["hostPath"]["path"]
    disk = {"hostPath": None, "csi": {"driver": "csi.example.com", "volumeHandle": folder}}
    world.home.update(PERSISTENT_VOLUMES, name, {"spec": disk})
    source = {"persistentVolumeName": name}
    spec = {"attacher": "csi.example.com", "nodeName": HOME_NODE, "source": source}
    world.home.put(VOLUME_ATTACHMENTS.manifest({"name": "csi-1"}, spec=spec))
    original = world.data()
    with pytest.raises(PreflightError, match=f"{name} is still attached to a node"):
        await world.transfer(timeout=2.0)
    assert not world.home.requests("DELETE", "*/persistentvolumes/*")
    assert world.data() == original
    assert world.claim()["status"]["phase"] == "Bound"
    world.home.remove(VOLUME_ATTACHMENTS, "csi-1")
    await world.transfer()
    assert world.data() != original
    assert same_files(world.data(), original)


@pytest.mark.parametrize("pods", ["/volume-source-", "/volume-target-"])
async def test_broken_connection_is_tried_again(world: VolumeWorld, pods: str) -> None:
    original = world.data()
    world.broken_pods = pods
    await world.transfer()
    assert_moved(world, original)
    assert any("attempt 2 of 3" in it for it in world.notified)


# -- interruptions -----------------------------------------------------------------------


def written(world: VolumeWorld) -> int:
    """The number of writes, without those that start a command in a pod."""
    return sum(not it.path.endswith("/exec") for it in world.home.writes())


async def interrupted(world: VolumeWorld, writes: int) -> bool:
    """Runs a move, and kills it after so many writes; whether it had not ended before."""
    world.home.clear_log()
    # A connection of its own, as that of another process.
    async with KubeClient(client_config_for(world.home, "home")) as client:
        usual, world.client = world.client, client
        task = asyncio.create_task(world.transfer())
        try:
            await world.home.until(lambda: task.done() or written(world) >= writes)
            was_running = not task.done()
            task.cancel()
            await asyncio.wait({task})
        finally:
            world.client = usual
    return was_running


async def no_cleanup(*_: object) -> None:
    """Of a killed process."""


@pytest.mark.parametrize("writes", range(2, 20))
async def test_move_killed_at_any_write_is_finished_by_the_next(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr(transfer_pods, "delete_if_possible", no_cleanup)
    original = world.data()
    await interrupted(world, writes)
    assert original.joinpath("large").exists()
    if ANNOTATION_MOVE in world.claim()["metadata"]["annotations"] or not world.is_remote():
        await world.transfer()
    assert_moved(world, original)


@pytest.mark.parametrize("writes", range(2, 20))
async def test_move_killed_at_any_write_is_cancelled_or_done(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Cancel restores the claim, or reports that the data has moved."""
    monkeypatch.setattr(transfer_pods, "delete_if_possible", no_cleanup)
    original = world.data()
    await interrupted(world, writes)
    try:
        await cancel(world)
    except PreflightError as error:
        if "already" in str(error):
            await world.transfer()
        elif "nothing to cancel" not in str(error):
            raise
    if len(world.claims()) == 2:
        assert_moved(world, original)
        return
    assert world.claims() == {CLAIM}
    assert world.data() == original
    assert world.claim()["status"]["phase"] == "Bound"
    assert ANNOTATION_MOVE not in world.claim()["metadata"]["annotations"]
    assert not world.home.objects(PODS, NAMESPACE)


async def test_the_writes_of_a_move_are_those_that_are_interrupted(world: VolumeWorld) -> None:
    await world.transfer()
    assert written(world) < 20


async def test_cancel_without_a_transfer_is_refused(world: VolumeWorld) -> None:
    with pytest.raises(PreflightError, match="there is nothing to cancel"):
        await cancel(world)


async def test_unfinished_copy_is_cancelled(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_scripts, "SEND", "exit 1")
    with pytest.raises(PreflightError):
        await world.transfer(new_name="other")
    assert await cancel(world, "other") == "other"
    assert world.claims() == {CLAIM}


async def test_copy_that_another_command_replaces_is_not_complete(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands copy to one claim: only the last one may mark the copy as complete."""
    end = transfer_pods.delete_if_possible

    async def end_and_lose(*args: Any) -> None:
        await end(*args)
        found = world.home.find(PERSISTENT_VOLUME_CLAIMS, "other", NAMESPACE)
        if found is not None:
            uid = world.claim()["metadata"]["uid"]
            other: dict[str, Any] = {"annotations": {ANNOTATION_COPY: f"{uid}/another"}}
            world.home.update(PERSISTENT_VOLUME_CLAIMS, "other", {"metadata": other}, NAMESPACE)

    monkeypatch.setattr(transfer_pods, "delete_if_possible", end_and_lose)
    with pytest.raises(PreflightError, match="another command works on it"):
        await world.transfer(new_name="other")
    assert ANNOTATION_COPY in world.claim("other")["metadata"]["annotations"]
    monkeypatch.setattr(transfer_pods, "delete_if_possible", end)
    await world.transfer(new_name="other")
    assert same_files(world.data("other"), world.data())


async def test_unfinished_move_leads_to_one_node(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_scripts, "SEND", "exit 1")
    with pytest.raises(PreflightError):
        await world.transfer()
    with pytest.raises(PreflightError, match=r"an unfinished move of .* leads to burst"):
        await world.transfer(to=HOME_NODE)
