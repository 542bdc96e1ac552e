"""The options of `bridge join` that protect the remote from pods of home, a part of the table
`JOIN`."""

from __future__ import annotations

import functools

from bridge.base.join_settings import parse_key_patterns
from bridge.cli.options.option_declaration import Option
from translators.pod_security import PodSecurityLevel
from translators.translation_options import ControlPlaneNodes

PROTECTING = "Protection of the remote"

PROTECTION: tuple[Option, ...] = (
    Option(
        "pod-security",
        "Loosest Pod Security level of remote namespaces that the bridge creates. Each has the "
        "level that home's namespace states (label pod-security.kubernetes.io/enforce), or "
        "baseline.",
        PROTECTING,
        kind=PodSecurityLevel,
        default="privileged",
    ),
    Option(
        "control-plane-nodes",
        "deny: pods do not tolerate the taints of the remote's control plane nodes, even if they "
        "tolerate every taint at home. allow: their tolerations are kept.",
        PROTECTING,
        kind=ControlPlaneNodes,
        default="deny",
    ),
    Option(
        "drop-pod-metadata",
        "Labels and annotations of pods to drop, PATTERN[,PATTERN], where * matches any "
        "characters, beside those that act on the remote's nodes, networks or identities.",
        PROTECTING,
        metavar="PATTERNS",
        form="list",
        parse=functools.partial(parse_key_patterns, option="--drop-pod-metadata"),
    ),
    Option(
        "pass-pod-metadata",
        "Labels and annotations of pods to keep nevertheless, PATTERN[,PATTERN].",
        PROTECTING,
        metavar="PATTERNS",
        form="list",
        parse=functools.partial(parse_key_patterns, option="--pass-pod-metadata"),
    ),
)
