"""`bridge volume copy`: what it copies, what it rejects, and what it leaves after a failure."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.volumes import copy_pod
from bridge.volumes.copy_pod import MARKER
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import EVENTS, PODS
from sync.kube.pod_exec import ScriptFailed
from tests.bridge.volumes.volume_world import NODE, SOURCE, TARGET, VolumeWorld
from tests.fakeapi import Fault
from translators.ownership_labels import LABEL_VOLUME_COPY
from translators.storage.identifiers import ClaimKey


def attributes(path: Path) -> tuple[Any, ...]:
    """All of a file or directory that a copy keeps."""
    status = path.lstat()
    kept = (status.st_mode, status.st_uid, status.st_gid, int(status.st_mtime))
    if stat.S_ISLNK(status.st_mode):
        return (*kept[:3], path.readlink())
    names = os.listxattr(path)
    values = {name: os.getxattr(path, name) for name in names if name.startswith("user.")}
    data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    links = 0 if path.is_dir() else status.st_nlink
    return (*kept, values, data, links)


def files(folder: Path) -> dict[str, tuple[Any, ...]]:
    """The attributes of all that is copied, by relative path."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    skipped = ("lost+found", "server.sock")
    return {name: attributes(path) for name, path in paths.items() if not name.startswith(skipped)}


def assert_copied(world: VolumeWorld) -> None:
    assert files(world.target) == files(world.source)
    assert attributes(world.target)[:3] == attributes(world.source)[:3]
    assert not world.pods()


def marker(world: VolumeWorld) -> str:
    return (world.target / MARKER).read_text()


async def test_copy_keeps_each_attribute_of_each_file(world: VolumeWorld) -> None:
    found = await world.copy()
    assert_copied(world)
    assert found.files == 7
    assert found.size == 300_000 + 40_000_000 + len("text\nodd\nodd\nlong\n")
    assert found.sent < 600_000
    hard, large = world.target / "a directory/below/hard", world.target / "large"
    assert hard.stat().st_ino == large.stat().st_ino
    # The source's sparse file occupies a block, and so does its copy.
    assert (world.target / "sparse").stat().st_blocks * 512 < 1_000_000
    assert not (world.target / "lost+found").exists()
    assert world.notified == ["sockets are not copied: ./server.sock"]
    assert isinstance(world.notified[0], Caveat)


@pytest.mark.parametrize("answer", ["", "hello", "1 2\\n\\n", "1 2 3 4\\n\\n", "x y z\\n\\n"])
async def test_malformed_answer_of_a_pod_is_an_error(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """Its node is in a remote, whose API server may answer in its place."""
    monkeypatch.setattr(copy_pod, "INSPECT", f"printf '{answer}'")
    with pytest.raises(PreflightError, match="something else than the size of its volume"):
        await world.copy()
    assert not world.pods()


async def test_copy_writes_nothing_but_its_pods(world: VolumeWorld) -> None:
    await world.copy()
    writes = [write for write in world.home.writes() if not write.path.endswith("/exec")]
    assert {write.method for write in writes} == {"POST", "DELETE"}
    assert all("/pods" in write.path for write in writes)


async def test_progress_counts_all_bytes(world: VolumeWorld) -> None:
    found = await world.copy()
    copying, verifying = world.progress.tasks
    assert copying.total == found.sent
    assert copying.completed == copying.total
    assert verifying.total == found.size


def untouched(world: VolumeWorld) -> bool:
    return not any(world.target.iterdir()) and not world.pods() and not world.scripts


@pytest.mark.parametrize(
    ("source", "target", "node", "message"),
    [
        (ClaimKey("shop", "none"), TARGET, "", "shop/none does not exist"),
        (SOURCE, ClaimKey("archive", "none"), "", "archive/none does not exist"),
        (SOURCE, SOURCE, "", "are the same"),
        (ClaimKey("shop", "pending"), TARGET, "", "shop/pending is not Bound"),
        (
            SOURCE,
            ClaimKey("shop", "pending"),
            "",
            "is not Bound; only a target may be, if --to names",
        ),
        (SOURCE, ClaimKey("shop", "pending"), "none", "no node none; the nodes are burst, worker"),
        (SOURCE, ClaimKey("shop", "disk"), "", "shop/disk is a block device"),
    ],
)
async def test_impossible_copy_is_rejected(
    world: VolumeWorld, source: ClaimKey, target: ClaimKey, node: str, message: str
) -> None:
    world.put_claim(ClaimKey("shop", "pending"))
    world.put_claim(ClaimKey("shop", "disk"), {"hostPath": {"path": "/disk"}}, mode="Block")
    with pytest.raises(PreflightError, match=message):
        await world.copy(source, target, node=node)
    assert untouched(world)


async def test_unbound_target_is_copied_to_on_the_named_node(world: VolumeWorld) -> None:
    """The scheduler binds it for the pod; the fake API server has no scheduler."""
    claim = ClaimKey("shop", "pending")
    world.put_claim(claim)
    await world.copy(SOURCE, claim, node=NODE)
    created = [request.body for request in world.home.requests("POST", "*/shop/pods")]
    (term,) = {
        str(pod["spec"]["affinity"]["nodeAffinity"]) for pod in created if "pending" in str(pod)
    }
    assert "'metadata.name', 'operator': 'In', 'values': ['burst']" in term
    assert_copied(world)


@pytest.mark.parametrize("claim", [SOURCE, TARGET])
async def test_mounted_claim_is_rejected(world: VolumeWorld, claim: ClaimKey) -> None:
    world.put_user(claim)
    with pytest.raises(PreflightError, match=f"pod {claim.namespace}/app mounts"):
        await world.copy()
    assert not any(world.target.iterdir())
    assert not world.scripts


async def test_pod_that_has_finished_does_not_mount(world: VolumeWorld) -> None:
    world.put_user(SOURCE, phase="Succeeded")
    await world.copy()
    assert [pod["metadata"]["name"] for pod in world.pods()] == ["app"]


async def test_pod_security_is_reported_before_a_pod_starts(world: VolumeWorld) -> None:
    message = 'pods "volume-copy" is forbidden: violates PodSecurity "restricted:latest"'
    world.home.fail(Fault("POST", "*/archive/pods", code=403, message=message, times=None))
    with pytest.raises(PreflightError, match=r"violates PodSecurity.*level baseline"):
        await world.copy()
    assert untouched(world)
    assert {write.query.get("dryRun") for write in world.home.writes()} == {"All"}


async def test_pods_that_do_not_start_are_reported(world: VolumeWorld) -> None:
    world.starts = False

    def warn() -> None:
        for pod in world.pods():
            about = {key: pod["metadata"][key] for key in ("namespace", "name")}
            event = {"involvedObject": about, "type": "Warning", "message": "no such image"}
            world.home.put(EVENTS.manifest({**about, "name": "event"}, **event))

    asyncio.get_running_loop().call_later(5, warn)
    with pytest.raises(PreflightError, match=r"do not run: .*Pending \(no such image\)"):
        await world.copy()
    assert untouched(world)


async def test_files_of_the_target_are_kept_unless_overwritten(world: VolumeWorld) -> None:
    (world.target / "file").write_text("precious")
    (world.target / "lost+found").mkdir()
    with pytest.raises(ScriptFailed, match=r"the volume has files; .* --overwrite"):
        await world.copy()
    assert (world.target / "file").read_text() == "precious"
    assert not (world.target / MARKER).exists()
    await world.copy(overwrite=True)
    assert_copied(world)
    assert (world.target / "lost+found").exists()


async def test_incomplete_copy_is_no_source(world: VolumeWorld) -> None:
    (world.source / MARKER).write_text("incomplete")
    with pytest.raises(ScriptFailed, match="the volume is an incomplete copy"):
        await world.copy()
    assert not any(world.target.iterdir())


async def copy_fails(world: VolumeWorld, message: str) -> None:
    """The copy fails so, leaves a marker and no pods, and succeeds when it runs again."""
    original = files(world.source)
    with pytest.raises((PreflightError, KubeError), match=message):
        await world.copy()
    assert files(world.source) == original
    assert "incomplete copy of PersistentVolumeClaim shop/data" in marker(world)
    assert "archive/copy is incomplete; its file" in world.notified[-1]
    assert {pod["metadata"]["name"] for pod in world.pods()} <= {"app"}
    for pod in world.pods():
        world.home.remove(PODS, "app", pod["metadata"]["namespace"])
    world.on_script = lambda _pod, _script: None


def at(script: str, action: Callable[[], None]) -> Callable[[str, str], None]:
    """Does something when a script starts for the first time."""
    left = [action]

    def on_script(_pod: str, started: str) -> None:
        if script in started and left:
            left.pop()()

    return on_script


@pytest.mark.parametrize("phase", ["Running", "Pending", "Succeeded"])
@pytest.mark.parametrize("claim", [SOURCE, TARGET])
@pytest.mark.parametrize("script", ["SEND", "DIGEST"])
async def test_pod_that_mounts_during_the_copy_ends_it(
    world: VolumeWorld, script: str, claim: ClaimKey, phase: str
) -> None:
    started = getattr(copy_pod, script)
    world.on_script = at(started, lambda: world.put_user(claim, phase=phase))
    await copy_fails(world, f"pod {claim.namespace}/app mounts")
    await world.copy()
    assert_copied(world)


@pytest.mark.parametrize(
    ("script", "replaced", "message"),
    [
        ("SEND", "echo broken >&2; exit 3", "shop/volume-copy-source-.*: broken"),
        ("receive", "echo 'no space left' >&2; exit 3", "no space left"),
        ("receive", "kill -9 $$", "the connection broke"),
        ("SEND", "kill -9 $$", "the connection broke"),
        ("DIGEST", "kill -9 $$", "the connection broke"),
    ],
)
async def test_failing_script_is_reported(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch, script: str, replaced: str, message: str
) -> None:
    with monkeypatch.context() as patched:
        value = (lambda _size: replaced) if script == "receive" else replaced
        patched.setattr(copy_pod, script, value)
        await copy_fails(world, message)
    await world.copy()
    assert_copied(world)


async def test_truncated_stream_is_found(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a record of tar, where tar itself cannot know."""
    with monkeypatch.context() as patched:
        patched.setattr(copy_pod, "SEND", f"{copy_pod.SEND} | head -c 262144")
        await copy_fails(world, "changed during the copy")
    await world.copy()
    assert_copied(world)


@pytest.mark.parametrize("size", [0, 1_000_000, 20_000_000])
async def test_source_that_changes_its_size_during_the_copy_is_found(
    world: VolumeWorld, size: int
) -> None:
    """The writer is no pod of the home cluster."""

    def write() -> None:
        (world.source / "large").write_bytes(bytes(size))

    world.on_script = at(copy_pod.SEND, write)
    with pytest.raises(PreflightError, match="shop/data changed during the copy"):
        await world.copy()
    assert marker(world)
    assert not world.pods()
    await world.copy()
    assert_copied(world)


async def test_marker_of_a_later_run_is_kept(world: VolumeWorld) -> None:
    """The same command has been started again, and has replaced the pods."""
    text = "This volume is an incomplete copy of a later run."

    def replace() -> None:
        (world.target / MARKER).write_text(text)

    world.on_script = at(f"rm {MARKER}", replace)
    with pytest.raises(ScriptFailed):
        await world.copy()
    assert marker(world) == text


def replace_tar(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """The script is the tar of the image."""
    tar = folder / "bin" / "tar"
    tar.parent.mkdir()
    tar.write_text(f"#!/bin/sh\n{script}")
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("option", "name"), [("--xattrs", "extended attributes"), ("--acls", "ACLs")]
)
async def test_what_tar_does_not_support_is_reported_before_the_copy(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, name: str
) -> None:
    replace_tar(
        monkeypatch,
        tmp_path,
        f"""case " $* " in *" {option} "*) echo 'tar: no support of {option}' >&2; exit 2; esac
exec {shutil.which("tar")} "$@"
""",
    )
    before: list[str] = []
    world.on_script = at(f">{MARKER}", lambda: before.extend(world.notified))
    await world.copy()
    assert before[0] == f"{name} are not copied: tar of the image does not support it"
    copied = os.listxattr(world.target / "large")
    assert copied == ([] if option == "--xattrs" else ["user.key"])


async def test_image_without_gnu_tar_is_rejected(
    world: VolumeWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_tar(monkeypatch, tmp_path, "echo 'tar (busybox) 1.37'")
    with pytest.raises(ScriptFailed, match="the image has no GNU tar"):
        await world.copy()
    assert not any(world.target.iterdir())


async def test_write_to_the_source_during_the_copy_is_found(world: VolumeWorld) -> None:
    """The writer is no pod of the home cluster."""
    large = world.source / "large"

    def write() -> None:
        with large.open("r+b") as file:
            file.seek(1000)
            file.write(b"other")
        os.utime(large, (1_000_000_000, 1_000_000_000))

    original = files(world.source)
    world.on_script = at(copy_pod.DIGEST, write)
    with pytest.raises(PreflightError, match="checksums differ"):
        await world.copy()
    assert files(world.source) != original
    assert marker(world)
    await world.copy()
    assert_copied(world)


@pytest.mark.parametrize("script", ["INSPECT", "SEND", "receive", "DIGEST"])
async def test_interrupted_copy_leaves_no_pods(world: VolumeWorld, script: str) -> None:
    copying: list[asyncio.Task[Any]] = []

    def interrupt() -> None:
        copying[0].cancel()

    world.on_script = at(
        "--extract" if script == "receive" else getattr(copy_pod, script), interrupt
    )
    copying.append(asyncio.create_task(world.copy()))
    with pytest.raises(asyncio.CancelledError):
        await copying[0]
    assert not world.pods()
    assert (world.target / MARKER).exists() == (script != "INSPECT")
    await world.copy()
    assert_copied(world)


async def test_pods_of_a_killed_command_are_removed_by_the_next(world: VolumeWorld) -> None:
    """Those of the same copy, and finished ones of other copies."""
    fault = world.home.fail(Fault("DELETE", "*/pods/*", code=500, times=None))
    await world.copy()
    left = {pod["metadata"]["name"] for pod in world.pods()}
    assert len(left) == 2
    world.home.heal(fault)
    meta = {"name": "other", "namespace": "shop", "labels": {LABEL_VOLUME_COPY: "other"}}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    world.home.put(PODS.manifest(meta, spec=spec, status={"phase": "Succeeded"}))
    world.put_user(SOURCE, phase="Succeeded")
    await world.copy(overwrite=True)
    assert [pod["metadata"]["name"] for pod in world.pods()] == ["app"]


async def test_running_pod_of_another_copy_is_no_leftover(world: VolumeWorld) -> None:
    world.put_user(SOURCE, name="volume-copy-source-other")
    labels = {"metadata": {"labels": {LABEL_VOLUME_COPY: "other"}}}
    world.home.update(PODS, "volume-copy-source-other", labels, "shop")
    with pytest.raises(PreflightError, match="pod shop/volume-copy-source-other mounts"):
        await world.copy()
    assert len(world.pods()) == 1
