"""A whole release: built twice to the same bytes, installed as a user would, and run by a cluster.

It takes minutes, so it is not part of `make test`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bridge.base.version import VERSION
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.clusters.run_command import run
from e2e.installed_bridge import Install
from e2e.kubectl import get_one, is_ready
from e2e.release import build, signing, source, verification
from e2e.workload_manifests import busybox

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the release of the commit that is checked out."""
    return built(tmp_path_factory.mktemp("release") / "first")


def built(target: Path) -> Path:
    cache = settings_from_environment().cache / "release"
    build.build(VERSION, target, address=build.LOCAL_ADDRESS, cache=cache, progress=silent)
    return target


def test_second_build_is_equal(release: Path, tmp_path: Path) -> None:
    with verification.other_circumstances():
        second = built(tmp_path / "second")
    assert verification.compare(release, second) > 10


def test_artefacts_install_and_run(release: Path, tmp_path: Path) -> None:
    verification.verify(VERSION, release, tmp_path, silent)
    signing.check(release)


def test_chart_and_kustomize_base_are_packed_whole(
    release: Path, helm: Path, tmp_path: Path, home: Cluster
) -> None:
    """Helm and kustomize render the packages to what they render from the sources."""
    manifests = source.REPOSITORY / "manifests"
    remote = ("--set", "remotes[0].name=far,remotes[0].kubeconfig=content")
    values = ("--namespace", "bridges", *remote, "--set", "remotes[0].state=leaving")
    package = release / f"cluster-bridge-{VERSION}.tgz"
    run([helm, "lint", package, *values])
    rendered = [
        run([helm, "template", "release", chart, *values, "--kube-version", "1.34.0"]).stdout
        for chart in (package, manifests / "chart")
    ]
    assert [*yaml.safe_load_all(rendered[0])] == [*yaml.safe_load_all(rendered[1])]

    verification.unpack(release / f"cluster-bridge-kustomize-{VERSION}.tar.gz", tmp_path)
    base = tmp_path / f"cluster-bridge-kustomize-{VERSION}" / "base"
    assert home.kubectl("kustomize", str(base)).stdout == (
        home.kubectl("kustomize", str(manifests / "base")).stdout
    )


@pytest.fixture
def released(installing: Install, release: Path) -> Install:
    """An installation from the released image."""
    installing.home.load_images(release / f"cluster-bridge-image-{VERSION}.tar")
    return replace(installing, image=f"docker.io/library/cluster-bridge:{VERSION}")


def test_released_image_runs_a_bridge(released: Install) -> None:
    it = released
    joined = it.install()
    assert joined.returncode == 0, joined.stderr
    assert is_ready(get_one(it.home, "node", it.node))
    bridges = it.bridges()
    assert [is_ready(pod) for pod in bridges] == [True, True]
    assert {c["image"] for pod in bridges for c in pod["spec"]["containers"]} == {it.image}
    manifest = busybox(it.node, "one", "echo it runs; sleep 3600")
    it.home.kubectl("apply", "-n", it.namespace, "-f", "-", input=manifest)
    it.home.kubectl("wait", "-n", it.namespace, "--for=condition=Ready", "pod/one", "--timeout=60s")
    assert it.home.kubectl("logs", "-n", it.namespace, "one").stdout == "it runs\n"
    executed = it.home.kubectl("exec", "-n", it.namespace, "one", "--", "echo", "hello")
    assert executed.stdout == "hello\n"
    left = it.leave()
    assert left.returncode == 0, left.stderr
