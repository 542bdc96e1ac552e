"""The options of `bridge join` that protect the remote from pods of home, a part of the table
`JOIN`."""

from __future__ import annotations

from bridge.base.join_settings import parse_pod_metadata
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
        "pod-metadata",
        "Labels and annotations of pods to drop or to keep, PATTERN=drop or PATTERN=keep[,...], "
        "where * matches any characters; keep wins. Default: those are dropped that act on the "
        "remote's nodes, networks or identities, and all others are kept.",
        PROTECTING,
        metavar="PATTERNS",
        form="map",
        parse=parse_pod_metadata,
    ),
)
