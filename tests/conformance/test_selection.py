"""The selection of upstream tests."""

from __future__ import annotations

import re

import pytest

from e2e.conformance.selection import GROUPS, SKIPS, SMOKE, STORAGE_GROUPS, listed, select

LISTED = f"""\
The following spec names can be used with 'ginkgo run --focus/skip':
    k8s.io/kubernetes@v1.34.4/test/e2e/pods.go:226: [sig-node] Pods should be updated{" "}
    k8s.io/kubernetes@v1.34.4/test/e2e/apps/job.go:80: [sig-apps] Job should run [Serial] [Slow]

    k8s.io/kubernetes@v1.34.4/test/e2e/dns.go:1: [sig-network] DNS should resolve: a name
"""
PODS, JOB, DNS = (
    "[sig-node] Pods should be updated",
    "[sig-apps] Job should run [Serial] [Slow]",
    "[sig-network] DNS should resolve: a name",
)


def test_names_are_read_from_the_list_that_the_suite_prints() -> None:
    assert listed(LISTED) == [PODS, JOB, DNS]


def test_a_test_is_run_when_a_group_has_it_and_no_skip_names_it() -> None:
    selection = select([JOB, DNS, PODS])
    assert selection.names == (PODS,)
    assert selection.skipped == {"is not to be run beside others": 1}


def test_a_focus_narrows_what_is_run_and_what_counts_as_left_out() -> None:
    assert select([JOB, PODS], focus="Pods should").names == (PODS,)
    assert select([JOB, PODS], focus="Pods should").skipped == {}
    assert select([JOB, PODS], focus="DNS").names == ()


def test_the_smoke_test_takes_few_of_the_selection() -> None:
    few = "[sig-node] Pods should be submitted and removed [NodeConformance] [Conformance]"
    assert select([few, JOB, "[sig-node] Events should be sent"], smoke=True).names == (few,)


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


def test_class_is_needed_for_tests_of_volumes_only() -> None:
    protection = "[sig-storage] PVC Protection Verify that PVC in active use is not removed"
    assert select([PODS, protection]).needs_storage
    assert not select([PODS, protection], focus="Pods").needs_storage


@pytest.mark.parametrize(
    "pattern", [rule.pattern for rule in GROUPS + STORAGE_GROUPS + SKIPS] + list(SMOKE)
)
def test_every_pattern_is_a_regular_expression(pattern: str) -> None:
    re.compile(pattern)


def test_every_skip_has_a_reason_of_its_own() -> None:
    assert len({rule.reason for rule in SKIPS}) == len(SKIPS)
