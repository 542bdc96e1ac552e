"""`bridge volume copy` between the home cluster and remotes, on real volumes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import bridge_process, command_terminal, debian_image, service_accounts
from e2e.bridge_process import BRIDGE, Bridge
from e2e.clusters import specs
from e2e.clusters.cluster import Cluster, Provisioner
from e2e.clusters.pytest_fixture import running, settings_from_environment
from e2e.conftest import Bridged, joined, usual_options
from e2e.kubectl import Json, get_one, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.storage_classes import local_path
from e2e.volume_files import digest, node_of_home, run_pod, write
from e2e.workload_manifests import BUSYBOX, volume_claim

MARKER = "INCOMPLETE-VOLUME-COPY.txt"
#: So that a copy takes seconds.
_MUCH = "head -c 300000000 /dev/urandom > /data/much; "


@pytest.fixture(scope="module")
def _image(clusters: dict[str, Cluster]) -> None:
    """Both clusters have the command's image. The first build takes a minute, which counts for no
    test."""
    settings = settings_from_environment()
    debian_image.load((clusters["home"], clusters["remote"]), settings.cache, print)


pytestmark = pytest.mark.usefixtures("provisioners", "home_provisioner", "_image")


def _list(folder: str) -> tuple[str, ...]:
    """The command that prints the names in a folder, without the byte that is no text."""
    return ("sh", "-c", f"ls {folder} | tr -d '\\377'")


@dataclass(frozen=True)
class _Copies:
    """Copies between claims of the home class ``near`` and of the class ``far`` of the remote."""

    storage: ProvisionedStorage
    near: str
    far: str
    log: Path

    def claim(self, name: str, storage_class: str) -> None:
        self.storage.bridged.apply(volume_claim(name, storage_class, "64Mi"))

    def arguments(self, source: str, target: str, *options: str) -> list[str]:
        namespace = self.storage.bridged.namespace
        return ["volume", "copy", f"{namespace}/{source}", f"{namespace}/{target}", *options]

    def run(self, source: str, target: str, *options: str) -> str:
        """Copies; returns the output of both kinds."""
        arguments = self.arguments(source, target, *options)
        done = bridge_process.run(*arguments, home=self.storage.home)
        assert done.returncode == 0, done.stderr
        assert not self.pods()
        return done.stderr + done.stdout

    def rejected(self, source: str, target: str, *options: str) -> str:
        """The error of a copy that fails."""
        arguments = self.arguments(source, target, *options)
        done = bridge_process.run(*arguments, home=self.storage.home)
        assert done.returncode == 1
        assert not self.pods()
        return done.stderr

    @contextlib.contextmanager
    def started(self, source: str, target: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A copy whose stream has begun; killed at the end of the block."""
        env = {**os.environ, "KUBECONFIG": str(self.storage.home.kubeconfig)}
        with self.log.open("wb") as output:
            process = subprocess.Popen(
                [BRIDGE, *self.arguments(source, target, *options)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            wait_for(
                lambda: process.poll() is not None or "much" in self.target_files(),
                "the copy has begun",
            )
            assert process.poll() is None, self.log.read_text()
            yield process
        finally:
            process.kill()
            process.wait()

    def pods(self) -> list[str]:
        """The pods of copies."""
        pods = self.storage.bridged.home_pods()
        label = "cluster-bridge.io/volume-copy"
        meta = [pod["metadata"] for pod in pods]
        return [found["name"] for found in meta if label in (found.get("labels") or {})]

    def target_files(self) -> list[str]:
        """The files of the target, by the copy's pod while it runs."""
        names = [name for name in self.pods() if "-target-" in name]
        listed = [
            self.storage.bridged.kubectl("exec", name, "--", *_list("/volume"), check=False)
            for name in names
        ]
        return "\n".join(listed).split("\n")

    def files(self, claim: str, node: str) -> list[str]:
        """The files of a claim."""
        run_pod(self.storage, "lists", claim, node)
        found = self.storage.bridged.kubectl("exec", "lists", "--", *_list("/data"))
        self.storage.bridged.kubectl("delete", "pod", "lists", "--wait=true")
        return found.split("\n")


@pytest.fixture
def copies(storage: ProvisionedStorage, tmp_path: Path) -> Iterator[_Copies]:
    with (
        local_path(storage.home, default=True) as near,
        local_path(storage.remote, default=True),
        storage.home_class("some") as far,
    ):
        yield _Copies(storage, near, far, tmp_path / "copy.log")
        storage.clear()


def _versions(copies: _Copies, claim: str) -> tuple[str, str]:
    """The versions of the claim and its PersistentVolume, which each write changes."""
    found = copies.storage.claims()[claim]
    volume = get_one(copies.storage.home, "pv", found["spec"]["volumeName"])
    return found["metadata"]["resourceVersion"], volume["metadata"]["resourceVersion"]


@pytest.mark.core
def test_files_are_copied_to_the_remote(copies: _Copies) -> None:
    storage, home_node = copies.storage, node_of_home(copies.storage)
    node = storage.bridged.node
    copies.claim("data", copies.near)
    before = write(storage, "data", home_node)
    versions = _versions(copies, "data")
    copies.claim("copy", copies.far)
    name = f"{storage.bridged.namespace}/copy"
    assert f"{name} is not Bound; only a target may be, if --to names" in copies.rejected(
        "data", "copy"
    )

    result = json.loads(copies.run("data", "copy", "--to", node, "-o", "json"))
    assert result["files"] == 305
    assert digest(storage, "copy", node) == before
    assert _versions(copies, "data") == versions


def test_files_return_and_replace_others_only_on_demand(copies: _Copies) -> None:
    storage, home_node = copies.storage, node_of_home(copies.storage)
    copies.claim("data", copies.far)
    before = write(storage, "data", storage.bridged.node)
    copies.claim("back", copies.near)
    write(storage, "back", home_node)
    assert "the volume has files" in copies.rejected("data", "back")
    copies.run("data", "back", "--overwrite")
    assert digest(storage, "back", home_node) == before


@pytest.mark.parametrize("mounted", ["data", "copy"])
def test_mount_during_the_copy_ends_it(copies: _Copies, mounted: str) -> None:
    """A pod that is there for a moment is enough; the next copy succeeds."""
    storage, home_node = copies.storage, node_of_home(copies.storage)
    node = storage.bridged.node
    copies.claim("data", copies.near)
    before = write(storage, "data", home_node, _MUCH)
    copies.claim("copy", copies.far)
    run_pod(storage, "user", "data", home_node)
    assert "user mounts PersistentVolumeClaim" in copies.rejected("data", "copy", "--to", node)
    storage.bridged.kubectl("delete", "pod", "user", "--wait=true")

    with copies.started("data", "copy", "--to", node) as process:
        storage.bridged.apply(storage.node_pod("user", mounted, "true", restartPolicy="Never"))
        storage.bridged.kubectl("delete", "pod", "user", "--wait=false", "--grace-period=0")
        assert process.wait(60) == 1
    assert "user mounts PersistentVolumeClaim" in copies.log.read_text()
    wait_for(lambda: not storage.bridged.home_pods(), "the pods are deleted")
    assert MARKER in copies.files("copy", node)
    copies.run("data", "copy")
    assert digest(storage, "copy", node) == before


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_copy_is_run_again(copies: _Copies, end: signal.Signals) -> None:
    """Ctrl-C removes the pods; those of a killed command are removed by the next."""
    storage, home_node = copies.storage, node_of_home(copies.storage)
    node = storage.bridged.node
    copies.claim("data", copies.near)
    before = write(storage, "data", home_node, _MUCH)
    copies.claim("copy", copies.far)
    with copies.started("data", "copy", "--to", node) as process:
        process.send_signal(end)
        process.wait(20)
    if end is signal.SIGINT:
        assert not copies.pods()
        assert MARKER in copies.files("copy", node)
        assert "the volume is an incomplete copy" in copies.rejected("copy", "data", "--overwrite")
    else:
        assert len(copies.pods()) == 2
    copies.run("data", "copy")
    assert digest(storage, "copy", node) == before
    wait_for(lambda: not storage.bridged.remote_pods(), "no pod is left in the remote")


def test_pod_security_and_image_are_reported_before_the_copy(copies: _Copies) -> None:
    storage, home_node = copies.storage, node_of_home(copies.storage)
    namespace = storage.bridged.namespace
    copies.claim("data", copies.near)
    copies.claim("other", copies.near)
    write(storage, "data", home_node)
    level = "pod-security.kubernetes.io/enforce"
    storage.home.kubectl("label", "namespace", namespace, f"{level}=restricted")
    try:
        rejected = copies.rejected("data", "other", "--to", home_node)
    finally:
        storage.home.kubectl("label", "namespace", namespace, f"{level}-")
    assert 'violates PodSecurity "restricted:latest"' in rejected
    assert storage.phases()["other"] == "Pending"
    rejected = copies.rejected("data", "other", "--to", home_node, "--image", BUSYBOX)
    assert "the image has no GNU tar" in rejected
    assert "0 files" not in copies.run("data", "other")


def test_progress_on_a_terminal(copies: _Copies) -> None:
    storage, home_node = copies.storage, node_of_home(copies.storage)
    copies.claim("data", copies.near)
    write(storage, "data", home_node, _MUCH)
    copies.claim("copy", copies.far)
    arguments = copies.arguments("data", "copy", "--to", storage.bridged.node)
    env = {"KUBECONFIG": str(storage.home.kubeconfig)}
    with command_terminal.opened([BRIDGE, *arguments], env) as terminal:
        shown = terminal.wait_for_text("0:00:", after=terminal.wait_for_text("copying"))
        shown = terminal.wait_for_text("MB/s", after=shown)
        terminal.wait_for_text("is copied to", after=terminal.wait_for_text("verifying"))
    wait_for(lambda: not copies.pods(), "the pods are deleted")


def _stateful_set(template: str, storage_class: str, placement: Json) -> str:
    mount = [{"name": template, "mountPath": "/data"}]
    main = {"name": "main", "image": BUSYBOX, "command": ["sleep", "3600"], "volumeMounts": mount}
    claim = json.loads(volume_claim(template, storage_class, "64Mi"))
    spec = {
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {
            "metadata": {"labels": {"app": "db"}},
            "spec": {"containers": [main], **placement},
        },
        "volumeClaimTemplates": [claim],
    }
    return json.dumps(
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec}
    )


def test_stateful_set_is_switched_over(copies: _Copies) -> None:
    """As the page documents it: the pod keeps its name, and has its data in the remote."""
    storage, bridged = copies.storage, copies.storage.bridged
    here = {
        **storage.placement(),
        "nodeSelector": {"kubernetes.io/hostname": node_of_home(storage)},
    }
    bridged.apply(_stateful_set("data", copies.near, here))
    storage.wait_until_ready("db-0")
    bridged.kubectl("exec", "db-0", "--", "sh", "-c", "echo kept > /data/file")
    bridged.kubectl("scale", "statefulset", "db", "--replicas=0")
    bridged.kubectl("wait", "--for=delete", "pod/db-0", "--timeout=60s")

    copies.claim("data-remote-db-0", copies.far)
    copies.run("data-db-0", "data-remote-db-0", "--to", bridged.node)
    bridged.kubectl("delete", "statefulset", "db")
    bridged.apply(_stateful_set("data-remote", copies.far, storage.placement()))
    storage.wait_until_ready("db-0")
    assert storage.read("db-0") == "kept\n"
    assert len(bridged.remote_pods()) == 1
    assert storage.phases() == dict.fromkeys(("data-db-0", "data-remote-db-0"), "Bound")


@pytest.fixture
def second(
    request: pytest.FixtureRequest, storage: ProvisionedStorage, tmp_path: Path
) -> Iterator[Bridged]:
    """The virtual node of a second remote, which may use the namespace of the first's test."""
    first = storage.bridged
    node = f"{first.node}-2"
    with running(request, specs(["second"]), settings_from_environment()) as found:
        remote = found["second"]
        remote.provision_volumes(Provisioner.LOCAL_PATH, print)
        debian_image.load((remote,), settings_from_environment().cache, print)
        near = service_accounts.at_home(first.home, tmp_path, node)
        far = service_accounts.in_remote(remote, tmp_path)
        bridge = Bridge(near, far, tmp_path / "second.log", usual_options(node))
        try:
            with joined(bridge, node, home=first.home, remote=remote) as made:
                service_accounts.bind(first.home, node, first.namespace)
                yield made
        finally:
            print(bridge.log.read_text())
            service_accounts.take_away_at_home(first.home, node)


def test_copy_between_two_remotes(copies: _Copies, second: Bridged) -> None:
    """One StorageClass serves both remotes; the files go through home."""
    storage = copies.storage
    with local_path(second.remote, default=True):
        copies.claim("data", copies.far)
        before = write(storage, "data", storage.bridged.node)
        copies.claim("copy", copies.far)
        copies.run("data", "copy", "--to", second.node)
        assert digest(storage, "copy", second.node) == before
        storage.clear()
