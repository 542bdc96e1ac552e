"""The selection of upstream tests, for both nodes and for the document. Pure.

A test is selected if its name matches a group and no skip. Names are those that
`e2e.test --list-tests` prints, such as "[sig-node] Pods should be updated [Conformance]".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# A line of --list-tests: the source location, then the name. Results lack trailing blanks.
_LISTED = re.compile(r"\s*\S+\.go:\d+: (?P<name>\S.*?)\s*")

# Quick tests of the largest differences from an ordinary kubelet: about a minute in all.
SMOKE = (
    r"^\[sig-node\] Pods should be submitted and removed",
    r"^\[sig-node\] Pods should be updated",
    r"^\[sig-node\] Pods should support remote command execution over websockets",
    r"^\[sig-node\] Pods should support retrieving logs from the container over websockets",
    r"^\[sig-node\] Downward API should provide pod name, namespace and IP address",
    r"^\[sig-node\] Downward API should provide pod UID as env vars",
    r"^\[sig-node\] InitContainer .* should invoke init containers on a RestartNever pod",
    r"^\[sig-node\] Kubelet when scheduling a busybox command in a pod should print the output",
    r"^\[sig-storage\] ConfigMap should be consumable from pods in volume with mappings \[",
    r"^\[sig-storage\] Secrets should be consumable from pods in volume \[",
    r"^\[sig-storage\] Projected combined should project all components",
    r"^\[sig-apps\] Job should run a job to completion when tasks succeed",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Tests with matching names run, or do not run, for this reason."""

    pattern: str
    reason: str


GROUPS = (
    Rule(r"^\[sig-node\]", "what a node does"),
    Rule(
        r"^\[sig-storage\] (ConfigMap|Secrets|Projected|Downward API|EmptyDir|Subpath)",
        "volumes that need no driver",
    ),
    Rule(r"^\[sig-apps\]", "controllers, and the pods they make"),
    Rule(r"^\[sig-cli\]", "kubectl, and all that it asks of a kubelet"),
    Rule(r"^\[sig-auth\] ServiceAccounts", "identity of pods"),
    Rule(r"^\[sig-auth\] NodeAuthenticator", "who may ask a kubelet"),
    Rule(r"^\[sig-network\] EndpointSlice", "addresses of pods behind Services"),
)

# With `--storage`, these alone.
STORAGE_GROUPS = (
    Rule(
        r"^External Storage .*\[Testpattern: (Dynamic PV|Generic Ephemeral)",
        "volumes that a provisioner makes",
    ),
    Rule(r"^\[sig-storage\] (PVC|PV) Protection", "deletion of what is in use"),
    Rule(r"^\[sig-apps\] StatefulSet", "StatefulSets, most of which have volumes"),
)

SKIPS = (
    Rule(r"\[Serial\]", "is not to be run beside others"),
    Rule(r"\[Disruptive\]", "breaks the cluster it runs on"),
    Rule(r"\[Slow\]", "takes minutes alone"),
    Rule(r"\[Flaky\]", "is marked as flaky upstream"),
    Rule(r"\[Feature:OffByDefault\]", "needs an alpha feature, which is off in these clusters"),
    Rule(r"\[DRA\]", "needs a driver for devices on the node's host"),
    Rule(r"\[Feature:NodeProblemDetector\]|\bSSH\b", "needs SSH to the node"),
    Rule(
        r"crictl|Mount propagation|HostCleanup|a RuntimeClass with scheduling without taints",
        "runs commands on the node's host",
    ),
    Rule(r"AppArmor", "needs AppArmor in the kernel of the node's host"),
    Rule(r"\[Feature:NodeLogQuery\]", "reads logs of the node's host, and is off by default"),
    Rule(r"\[Feature:RuntimeHandler\]", "needs a second container runtime on the node"),
    Rule(r"\[Feature:KubeletCredentialProviders\]", "needs a program on the node's host"),
    Rule(r"UserNamespaces", "needs a container runtime with user namespaces"),
    Rule(r"\[Feature:StatefulUpgrade\]", "is a test of upgrading a cluster"),
    Rule(r"private image|able to pull image|private registry", "needs a registry"),
    Rule(r"load-balancer", "needs a cloud"),
    Rule(
        r"External Storage .*(block volmode|\((ext[34]|xfs|ntfs)\)|\[Feature:)",
        "needs devices, file systems or features that directories of a node do not have",
    ),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The tests to run, sorted, and the number of tests that each skip excluded."""

    names: tuple[str, ...]
    skipped: dict[str, int]

    @property
    def needs_storage(self) -> bool:
        """Whether any of the tests needs a StorageClass."""
        return any(_any(STORAGE_GROUPS, name) for name in self.names)


def listed(output: str) -> list[str]:
    """The names in the output of `e2e.test --list-tests`."""
    return [found["name"] for line in output.splitlines() if (found := _LISTED.fullmatch(line))]


def select(
    names: Iterable[str], *, focus: str = "", smoke: bool = False, storage: bool = False
) -> Selection:
    """Selects from all names; `focus` narrows them to matching names, `smoke` to a few. `storage`
    selects the tests of volumes only."""
    groups = STORAGE_GROUPS if storage else GROUPS + STORAGE_GROUPS
    few = "|".join(SMOKE) if smoke else ""
    chosen, skipped = [], dict.fromkeys((rule.reason for rule in SKIPS), 0)
    for name in names:
        if not (_any(groups, name) and re.search(focus, name) and re.search(few, name)):
            continue
        if rule := _any(SKIPS, name):
            skipped[rule.reason] += 1
        else:
            chosen.append(name)
    return Selection(tuple(sorted(chosen)), {why: n for why, n in skipped.items() if n})


def _any(rules: Iterable[Rule], name: str) -> Rule | None:
    return next((rule for rule in rules if re.search(rule.pattern, name)), None)
