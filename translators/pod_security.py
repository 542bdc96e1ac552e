"""Decides which Pod Security level a remote namespace enforces, and explains a rejection by it.

The bridge labels the remote namespaces that it creates with ``pod-security.kubernetes.io/enforce``.
A namespace that was handed over keeps the labels of its administrator.

- The level is the one that home's namespace states explicitly by that label, or ``baseline``. An
  invalid value counts as ``restricted``, as for an API server.
- No virtual node allows more than its ``--pod-security``. Each node that uses the namespace records
  its limit there, and the strictest one applies to all: joins with different limits compute the
  same level, and never overwrite each other's label.
- ``pod-security.kubernetes.io/enforce-version`` of home is copied with the level, unless a node has
  a limit: an older version of a level may allow more.
- A stricter level that another client sets in the remote stays; a looser one is replaced. An
  annotation records what the bridge has set.

The bridge updates the label when it next uses the namespace for a new pod or a copy: the label does
not affect running pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import DOMAIN, used_by_annotation, users_of_namespace

#: The levels of the Pod Security Standards, from the loosest to the strictest.
PodSecurityLevel = Literal["privileged", "baseline", "restricted"]
LEVELS: tuple[PodSecurityLevel, ...] = get_args(PodSecurityLevel)

#: Labels of a namespace (k8s.io/pod-security-admission/api).
LABEL_ENFORCE = "pod-security.kubernetes.io/enforce"
LABEL_ENFORCE_VERSION = "pod-security.kubernetes.io/enforce-version"
#: On a namespace that the bridge created: the level, and the version, that a bridge set last.
ANNOTATION_SET = f"{DOMAIN}/pod-security"

#: The level of a namespace whose counterpart at home states none.
DEFAULT_LEVEL: PodSecurityLevel = "baseline"
#: The value of a user's annotation without a limit; earlier versions wrote it too.
_NO_LIMIT = "true"
_VERSION = re.compile(r"latest|v1\.(0|[1-9][0-9]{0,5})")
#: ``status.reason`` of a home pod that the remote rejects because of Pod Security.
REASON = "RemotePodSecurity"
#: A part of an API server's rejection (Validate in k8s.io/pod-security-admission/admission).
_VIOLATION = 'violates PodSecurity "'


class EnforcedPolicy(NamedTuple):
    """A level with the version of Kubernetes that defines it; "" is the API server's own."""

    level: PodSecurityLevel
    version: str = ""

    def __str__(self) -> str:
        return f"{self.level}:{self.version}" if self.version else self.level


class Limit(NamedTuple):
    """The ``--pod-security`` of one virtual node, by its name as a label value."""

    node: str
    level: PodSecurityLevel


def is_violation(server_message: str) -> bool:
    """Whether an API server rejected a pod because of Pod Security."""
    return _VIOLATION in server_message


def is_at_least(level: PodSecurityLevel, other: PodSecurityLevel) -> bool:
    """Whether ``level`` is as strict as ``other``, or stricter."""
    return LEVELS.index(level) >= LEVELS.index(other)


def stated_policy(labels: Mapping[str, str]) -> EnforcedPolicy | None:
    """The policy that a namespace states by its labels; None without the label."""
    value = labels.get(LABEL_ENFORCE)
    if value is None:
        return None
    level = next((it for it in LEVELS if it == value), LEVELS[-1])
    version = labels.get(LABEL_ENFORCE_VERSION, "")
    return EnforcedPolicy(level, version if _VERSION.fullmatch(version) else "")


def limit_value(level: PodSecurityLevel) -> str:
    """The value of the annotation by which a node registers as a user of a namespace."""
    return _NO_LIMIT if level == LEVELS[0] else level


def desired_policy(remote: Object, home_labels: Mapping[str, str], own: Limit) -> EnforcedPolicy:
    """The policy for a namespace that the bridge created, or creates; ``own`` is this node's
    limit."""
    home = stated_policy(home_labels) or EnforcedPolicy(DEFAULT_LEVEL)
    limits = {limit.level for limit in _limits(remote, own)}
    level = max(home.level, *limits, key=LEVELS.index)
    return home if limits == {LEVELS[0]} else EnforcedPolicy(level)


def registration(remote: Object, home_labels: Mapping[str, str], own: Limit) -> Object:
    """The change of the metadata that registers the node as a user of a namespace that the bridge
    created, and sets the level; {} if nothing differs."""
    labels = metadata(remote).get("labels") or {}
    annotations = metadata(remote).get("annotations") or {}
    change: Object = {}
    user, limit = used_by_annotation(own.node), limit_value(own.level)
    if annotations.get(user) != limit:
        change["annotations"] = {user: limit}
    desired, current = desired_policy(remote, home_labels, own), stated_policy(labels)
    if current == desired:
        return change
    is_stricter = current is not None and is_at_least(current.level, desired.level)
    if is_stricter and not _is_set_by_bridge(remote):
        return change
    change["labels"] = {LABEL_ENFORCE: desired.level}
    if desired.version or LABEL_ENFORCE_VERSION in labels:
        change["labels"][LABEL_ENFORCE_VERSION] = desired.version or None
    change["annotations"] = {**change.get("annotations", {}), ANNOTATION_SET: str(desired)}
    return change


def _is_set_by_bridge(remote: Object) -> bool:
    """Whether the label of the namespace is the one that a bridge set last."""
    meta = metadata(remote)
    current = stated_policy(meta.get("labels") or {})
    return str(current) == (meta.get("annotations") or {}).get(ANNOTATION_SET)


def _limits(remote: Object, own: Limit) -> Iterator[Limit]:
    """The limit of each virtual node that uses the namespace."""
    yield own
    for node, value in users_of_namespace(remote).items():
        if node != own.node:
            yield Limit(node, next((it for it in LEVELS if it == value), LEVELS[0]))


def explain_level(
    remote: Object, home_namespace: str, home_labels: Mapping[str, str] | None, own: Limit
) -> str:
    """Why a namespace that the bridge created enforces its level, and what raises or lowers it.
    ``home_labels`` None: the bridge may not read home's namespace."""
    desired = desired_policy(remote, home_labels or {}, own)
    current = stated_policy(metadata(remote).get("labels") or {}) or desired
    name = name_of(remote)
    if current.level != desired.level and _is_set_by_bridge(remote):
        return (
            f"namespace {name} of the remote enforces {current.level}; the bridge sets "
            f"{desired.level} when it next creates an object there"
        )
    if current.level != desired.level:
        return (
            f"namespace {name} of the remote enforces {current.level}: its label {LABEL_ENFORCE} "
            f"was set in the remote; its administrator can set {desired.level}"
        )
    causes = list(_causes(remote, home_namespace, home_labels, own, desired.level))
    return f"namespace {name} of the remote enforces {desired.level}: {'; '.join(causes)}"


def explain_handed_over(remote: Object) -> str:
    """As `explain_level`, for a namespace that was handed over."""
    stated = stated_policy(metadata(remote).get("labels") or {})
    level = f"the level {stated.level}" if stated is not None else "no level of its own"
    return (
        f"namespace {name_of(remote)} of the remote was handed over with {level}; its "
        f"administrator decides by the label {LABEL_ENFORCE}"
    )


def _causes(
    remote: Object,
    home_namespace: str,
    home_labels: Mapping[str, str] | None,
    own: Limit,
    level: PodSecurityLevel,
) -> Iterator[str]:
    """Everything that has to change for a looser level than ``level``."""
    stated = stated_policy(home_labels or {})
    if (stated.level if stated is not None else DEFAULT_LEVEL) == level:
        if home_labels is None:
            yield (
                f"the bridge may not get namespace {home_namespace} of home, whose label "
                f"{LABEL_ENFORCE} decides; apply `bridge rbac home` of this version again"
            )
        elif stated is not None:
            yield f"home's namespace {home_namespace} has the label {LABEL_ENFORCE}={level}"
        else:
            yield (
                f"namespace {home_namespace} of the home cluster states no level; an administrator "
                f"there can: kubectl label namespace {home_namespace} {LABEL_ENFORCE}=privileged"
            )
    for limit in _limits(remote, own):
        if limit.level == level != LEVELS[0]:
            yield f"virtual node {limit.node} was joined with --pod-security {level}"
