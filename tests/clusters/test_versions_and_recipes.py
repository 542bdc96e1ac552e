"""Versions on the command line, and the go.mod that is made for a build."""

from __future__ import annotations

import pytest

from e2e.clusters import go_recipes
from e2e.clusters.errors import InvalidRequest
from e2e.clusters.versions import (
    DEFAULT_KUBERNETES,
    KIND_NODES,
    KUBERNETES,
    KubernetesVersion,
    parse_versions,
)

UPSTREAM = """\
module k8s.io/kubernetes

go 1.24.0

godebug default=go1.24

require (
\tgithub.com/spf13/cobra v1.9.1
\tk8s.io/api v0.0.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/client-go v0.0.0 => ./staging/src/k8s.io/client-go
)

replace k8s.io/kubelet => ./staging/src/k8s.io/kubelet
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.34", KUBERNETES["1.34"]),
        ("v1.31", KUBERNETES["1.31"]),
        ("1.33.2", "v1.33.2"),
        ("v1.36.0", "v1.36.0"),
    ],
)
def test_a_minor_stands_for_its_patch_release_and_a_full_version_for_itself(
    text: str, version: str
) -> None:
    assert str(KubernetesVersion.parse(text)) == version


def test_each_cluster_can_have_a_version_of_its_own() -> None:
    assert parse_versions("1.34") == {"": KubernetesVersion.parse("1.34")}
    found = parse_versions("home=1.34,remote=1.36")
    assert {name: str(it) for name, it in found.items()} == {
        "home": KUBERNETES["1.34"],
        "remote": KUBERNETES["1.36"],
    }
    for text in ("home=1.34,home=1.36", "=1.34", "home=1.34,1.36", "home=2.1"):
        with pytest.raises(InvalidRequest):
            parse_versions(text)


@pytest.mark.parametrize(
    "text", ["", "1", "1.12", "2.34", "1.34.x", "latest", "1.34.4-rc.0", "1.12.1"]
)
def test_other_versions_are_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"take one of 1\.31"):
        KubernetesVersion.parse(text)


def test_every_minor_release_has_an_entry_of_its_own_in_both_tables() -> None:
    assert KUBERNETES.keys() == KIND_NODES.keys()
    for table in (KUBERNETES, KIND_NODES):
        assert all(full.startswith(f"v{minor}.") for minor, full in table.items())
    assert DEFAULT_KUBERNETES in KUBERNETES.values()


def test_go_mod_replaces_what_is_released_together_by_its_published_version() -> None:
    made = go_recipes.go_mod(go_recipes.kubernetes(KubernetesVersion(1, 34, 4)), UPSTREAM)
    assert made == (
        "module cluster-bridge.invalid/kubernetes\n\n"
        "go 1.24\n"
        "godebug default=go1.24\n\n"
        "require k8s.io/kubernetes v1.34.4\n\n"
        "replace k8s.io/api => k8s.io/api v0.34.4\n"
        "replace k8s.io/client-go => k8s.io/client-go v0.34.4\n"
        "replace k8s.io/kubelet => k8s.io/kubelet v0.34.4\n"
    )


def test_a_module_that_stands_alone_gets_no_replacements() -> None:
    assert "replace" not in go_recipes.go_mod(go_recipes.etcd(), UPSTREAM)


def test_programs_of_several_modules_share_one_build() -> None:
    recipe = go_recipes.csi_driver()
    assert {"csi-driver", "csi-provisioner", "csi-snapshotter"} == dict(recipe.programs).keys()
    made = go_recipes.go_mod(recipe, UPSTREAM)
    assert f"require {recipe.module} {recipe.version}\n" in made
    for module, version in recipe.requirements:
        assert f"require {module} {version}\n" in made


def test_the_go_release_is_read_from_the_module() -> None:
    assert go_recipes.go_needed(UPSTREAM) == (1, 24)
    assert go_recipes.go_needed("module x\n") == (1, 21)


def test_the_version_is_stamped_into_the_programs() -> None:
    recipe = go_recipes.kubernetes(KubernetesVersion(1, 35, 4))
    assert "version.gitVersion=v1.35.4 " in recipe.ldflags
    assert "version.gitMinor=35 " in recipe.ldflags
    assert recipe.folder == "kubernetes-v1.35.4"


def test_the_upstream_tests_are_a_build_of_their_own_of_the_same_version() -> None:
    recipe = go_recipes.kubernetes_e2e(KubernetesVersion(1, 34, 4))
    assert recipe.folder == "kubernetes-e2e-v1.34.4"
    assert recipe.tests == (("e2e.test", "k8s.io/kubernetes/test/e2e"),)
    assert "k8s.io/api => k8s.io/api v0.34.4" in go_recipes.go_mod(recipe, UPSTREAM)
