"""Provisioners of volumes beside a native cluster, and their StorageClasses."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import yaml

from e2e import storage_classes
from e2e.clusters import Settings, csi_driver, go_recipes, provisioners, specs
from e2e.clusters.addresses import Plan
from e2e.clusters.cluster import Cluster, CsiPart, Progress, Provisioner
from e2e.clusters.native_site import Site
from e2e.clusters.processes import Supervisor
from e2e.clusters.startup_client import StartupClient
from tests.clusters.cluster_handle import cluster_handle


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A cluster without network namespace, whose API server accepts everything."""
    supervisor = Supervisor(tmp_path, tmp_path, tmp_path / "join", Path("-"))
    monkeypatch.setattr(Site, "supervisor", supervisor)
    monkeypatch.setattr(StartupClient, "create_if_absent", lambda *_: True)
    return Site(Settings(prefix="none"), specs(["remote"])[0], Plan(IPv4Network("10.0.0.0/8"), 0))


@pytest.mark.parametrize("provisioner", Provisioner)
def test_provisioner_is_started_once_and_again_after_it_ended(
    provisioner: Provisioner, site: Site, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / provisioner
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    try:
        provisioners.start(site, provisioner, programs)
        first = site.supervisor.pid(provisioner)
        provisioners.start(site, provisioner, programs)
        assert first is not None
        assert site.supervisor.pid(provisioner) == first
        site.supervisor.stop(provisioner, grace=0)
        provisioners.start(site, provisioner, programs)
        assert site.supervisor.pid(provisioner) not in {first, None}
    finally:
        site.supervisor.stop(provisioner, grace=0)
    command = " ".join(site.supervisor.command(provisioner))
    assert str(site.settings.kubeconfig("remote")) in command
    # Below the cluster's folder, which is removed with it.
    assert str(site.folder / "volumes") in command
    assert provisioners.DRIVERS[provisioner] in command


def test_parts_of_the_csi_driver_are_built_and_run_by_their_names(
    site: Site, tmp_path: Path
) -> None:
    for part in CsiPart:
        assert part in dict(csi_driver.recipe(part).programs)
        program = tmp_path / part
        program.write_text("#!/bin/sh\nexec sleep 60\n")
        program.chmod(0o755)
        try:
            for _ in range(2):
                csi_driver.start(site, part, tmp_path)
            assert site.supervisor.running(part)
        finally:
            site.supervisor.stop(part, grace=0)
        # Below the cluster's folder, which is removed with it.
        assert str(site.folder / "csi" / "csi.sock") in " ".join(site.supervisor.command(part))


def test_configuration_of_local_path_is_no_file_name_and_its_helper_pod_is_complete() -> None:
    made = provisioners.command(Provisioner.LOCAL_PATH, "program", "kubeconfig", "/volumes", "n")
    (config,) = [str(it).partition("=")[2] for it in made if str(it).startswith("--config=")]
    assert json.loads(config)["nodePathMap"][0]["paths"] == ["/volumes"]
    *_, (_, config_map) = provisioners.objects(Provisioner.LOCAL_PATH)
    assert config_map["data"].keys() == {"helperPod.yaml", "setup", "teardown"}
    assert yaml.safe_load(config_map["data"]["helperPod.yaml"])["kind"] == "Pod"


def test_build_of_own_provisioner_is_named_after_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = provisioners.recipe(Provisioner.HOSTPATH)
    assert {"main.go", "expansion.go"} <= dict(own.sources).keys()
    monkeypatch.setattr(go_recipes, "HOSTPATH_PROVISIONER_SOURCES", tmp_path)
    (tmp_path / "main.go").write_text("package main\n")
    assert provisioners.recipe(Provisioner.HOSTPATH).folder != own.folder
    assert provisioners.recipe(Provisioner.LOCAL_PATH).sources == ()


@dataclass
class Control:
    """Records the provisioners that were started."""

    started: list[Provisioner] = field(default_factory=list)

    def provision_volumes(self, provisioner: Provisioner, say: Progress) -> None:
        say("")
        self.started.append(provisioner)


def test_class_is_created_for_the_block_only_and_its_provisioner_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    manifests: list[dict[str, object]] = []

    def kubectl(_: Cluster, *args: str, **options: str) -> subprocess.CompletedProcess[str]:
        calls.append(args)
        if "input" in options:
            manifests.append(json.loads(options["input"]))
        return subprocess.CompletedProcess(args, 0, "", "")

    monkeypatch.setattr(Cluster, "kubectl", kubectl)
    control = Control()
    cluster = cluster_handle(tmp_path, control=control)
    parameters, binding = {"provisionDelay": "5s"}, storage_classes.IMMEDIATE
    slow_class = storage_classes.hostpath(cluster, "slow", binding=binding, parameters=parameters)
    with slow_class as name:
        assert name == "slow"
    with storage_classes.local_path(cluster, default=True, retain=True):
        pass
    slow, local = manifests
    assert slow["parameters"] == {"provisionDelay": "5s"}
    assert slow["volumeBindingMode"] == "Immediate"
    assert slow["allowVolumeExpansion"] is True
    assert slow["metadata"] == {
        "name": "slow",
        "annotations": {storage_classes.DEFAULT_CLASS: "false"},
    }
    assert local["provisioner"] == "rancher.io/local-path"
    assert local["reclaimPolicy"] == "Retain"
    assert local["metadata"] == {
        "name": "local-path",
        "annotations": {storage_classes.DEFAULT_CLASS: "true"},
    }
    # Deleted before too: an interrupted run may have left it.
    assert [(it[0], it[2]) for it in calls] == [
        call
        for name in ("slow", "local-path")
        for call in (("delete", name), ("create", "-"), ("delete", name))
    ]
    assert control.started == [Provisioner.HOSTPATH, Provisioner.LOCAL_PATH]
