"""The selection of upstream tests."""

from __future__ import annotations

from e2e.conformance.selection import select

PODS, JOB, DNS = (
    "[sig-node] Pods should be updated",
    "[sig-apps] Job should run [Serial] [Slow]",
    "[sig-network] DNS should resolve: a name",
)


def test_a_test_is_run_when_a_group_has_it_and_no_skip_names_it() -> None:
    selection = select([JOB, DNS, PODS])
    assert selection.names == (PODS,)
    assert selection.skipped == {"is not to be run beside others": 1}


def test_storage_selects_the_tests_of_provisioned_volumes_only() -> None:
    external = "External Storage [Driver: x] [Testpattern: "
    data = f"{external}Dynamic PV (default fs)] volumes should store data"
    ephemeral = f"{external}Generic Ephemeral-volume (default fs) (late-binding)] ephemeral should"
    claims = "[sig-apps] StatefulSet should perform rolling updates with PVCs"
    protection = "[sig-storage] PVC Protection Verify that PVC in active use is not removed"
    others = [
        f"{external}Dynamic PV (ext4)] volumes should store data",
        f"{external}Dynamic PV (block volmode)] volumes should store data",
        f"{external}Pre-provisioned PV (default fs)] volumes should store data",
        PODS,
    ]
    volumes = (data, ephemeral, claims, protection)
    assert select([*volumes, *others], storage=True).names == volumes
    assert set(select([*volumes, *others]).names) == {*volumes, PODS}
