"""The settings of a join: parsed and validated once, then immutable; and the checks of values.

Each check raises SettingsError with the option, its value, and what to use instead.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.capacity.node_capacity import NO_LIMITS, OfferLimits
from translators.derived_names import dns_label
from translators.object_accessors import Object
from translators.ownership_labels import DOMAIN
from translators.pod_security import PodSecurityLevel
from translators.relay import forward_plan, ipam
from translators.translation_options import (
    ControlPlaneNodes,
    DaemonSets,
    HostPort,
    Network,
    PodMetadata,
    ServiceAccounts,
)

#: The port that clients expect a kubelet on; where it stands in the Node's status they use that.
KUBELET_PORT = 10250
DEFAULT_TEMPLATE = "{namespace}-{home}"
#: Seconds in which an autoscaler adds a node: it starts machines.
ELASTIC_TIMEOUT = 900.0
#: Keeps pods without a toleration on home's own nodes.
DEFAULT_TAINTS = f"{DOMAIN}/virtual-node=true:NoSchedule"
#: Seconds that a remote namespace of the bridge and the copies in it remain after the last pod that
#: needs them: a Job every few seconds must not create and delete its namespace each time.
NAMESPACE_LINGER = 60.0
#: Seconds without traffic after which the relay resets a connection, unless an option sets it.
RELAY_IDLE = 3600.0
#: Limits of the relay (`RelaySettings`): open connections in total and of one Service, and new
#: connections per second in total and of one Service.
RELAY_CONNECTIONS, RELAY_SERVICE_CONNECTIONS = 2000, 1000
RELAY_RATE, RELAY_SERVICE_RATE = 400.0, 200.0
#: The port of an API server whose address has none (that of https).
API_PORT = 443
#: The signer of the serving certificate, unless it comes from files. ``auto``: home where a client
#: verifies the certificate (`bridge.certificates.automatic_certificate`).
ServingCertificate = Literal["auto", "self-signed", "csr"]

#: Identity of the bridge at home: the node, by a certificate that home signed, or its own account.
HomeIdentity = Literal["node", "service-account"]
#: ``auto`` is the node where home signs the certificate without a wait for a person, or where the
#: account may not act in place of the node.
HomeIdentityChoice = Literal["auto", "node", "service-account"]

#: The format of log lines.
LogFormat = Literal["console", "json"]

#: The source of resource metrics: the remote's kubelets, its metrics API, or none.
MetricsSource = Literal["kubelets", "api", "none"]
#: ``auto`` is the first of these that the remote's credential permits.
MetricsChoice = Literal["auto", "kubelets", "api", "none"]

#: ``auto`` provisions volumes where the permissions for it are granted.
StorageChoice = Literal["auto", "provision", "none"]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE_GLOB = re.compile(r"[-a-z0-9*?]{1,63}")
#: Characters of the keys of labels and annotations, and wildcards.
_KEY_GLOB = re.compile(r"[-A-Za-z0-9_./*?]{1,317}")
_API_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*|[0-9a-f:.]*:[0-9a-f:.]*")


#: How pods of the two clusters reach each other; ``auto`` probes
#: (`bridge.clusters.network_selection`).
NetworkChoice = Literal["auto", "flat", "relay", "none"]
#: How a network mode was determined: by ``--network``, by a probe with a clear result, or as the
#: safe mode because no probe had one.
NetworkSource = Literal["configured", "probed", "assumed"]


class SettingsError(ValueError):
    """An option's value is invalid; the message names the option, the value and what to use."""


@dataclass(frozen=True, slots=True)
class SelectedNetwork:
    """A network mode, and how it was determined."""

    mode: Network
    source: NetworkSource
    reason: str = ""
    """The result of the probe, or why an earlier result still counts."""

    def __str__(self) -> str:
        how = "not probed" if self.source == "assumed" else self.source
        return f"pod networks: {self.mode} ({how}{': ' if self.reason else ''}{self.reason})"


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports to listen on, from the first to the last, inclusive."""

    first: int
    last: int

    def __contains__(self, port: int) -> bool:
        return self.first <= port <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """How the bridge forwards connections between home and the remote's pods."""

    address: str | None = None
    """IP at which home's nodes and pods reach the bridge; None is the node's."""
    ports: PortRange | None = None
    """Ports to listen on; None is any free port."""
    idle: float = RELAY_IDLE
    """Seconds without traffic after which a connection is reset."""
    image: str = ""
    """Image of the relay agents in the remote; "" creates none."""
    cidr: str | None = None
    """IP range for pods of headless Services, which home's nodes route to the bridge."""
    connections: int = RELAY_CONNECTIONS
    """Maximum number of open connections in each direction, and of flows of UDP. Fewer if the
    process has little memory or may have few files open (`bridge.net.open_file_budget`). No option
    sets this field or those below."""
    service_connections: int = RELAY_SERVICE_CONNECTIONS
    """Maximum number of open connections of one Service."""
    rate: float = RELAY_RATE
    """Maximum number of new connections per second. Connections above it wait for some seconds,
    Services in turn, and are then rejected."""
    service_rate: float = RELAY_SERVICE_RATE
    """Maximum number of new connections of one Service per second."""
    listeners: int = 4096
    """Maximum number of ports that the bridge listens on; it follows from how many files the
    process may have open."""


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """The settings of one join; None if the bridge determines the value."""

    remote: KubeconfigRef
    """The remote's kubeconfig and context."""
    home: KubeconfigRef
    """Home's; by default as kubectl finds it."""
    home_identity: HomeIdentityChoice = "auto"
    """Identity of the bridge at home."""
    home_bootstrap: Path | None = None
    """The kubeconfig by which a missing certificate of the node is requested; None is home's."""
    state_secret: str | None = None
    """Name of the Secret, in the pod's namespace, that replicas share for the certificate of the
    node's identity and the remote's renewed token; None keeps both in files."""
    name: str | None = None
    """The virtual node's name; None derives it from the remote's context."""
    home_name: str | None = None
    """Value of ``{home}``; None derives it from home's identity, so that two homes differ."""
    address: str | None = None
    """IP at which home's API server reaches the kubelet API; None is this machine's towards it."""
    port: int = KUBELET_PORT
    """The kubelet API's port; 0 selects a free one."""
    health_port: int | None = None
    """Port of /livez and /readyz over plain HTTP; None is no port."""
    template: str = DEFAULT_TEMPLATE
    """Names of home's namespaces in the remote."""
    accept_namespaces: tuple[str, ...] = ()
    """Remote namespaces to use once they are handed over: names or globs."""
    remote_namespaces: tuple[str, ...] = ()
    """The remote's prepared namespaces, to work in these alone; empty for any."""
    network: NetworkChoice = "auto"
    """How pods of the two clusters reach each other."""
    relay: RelaySettings = RelaySettings()
    """For ``network`` relay."""
    remote_pod_cidrs: tuple[str, ...] = ()
    """Networks of the remote's pods, for ``network`` flat; empty for any."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the Node beside the bridge's own; likewise ``annotations`` and ``taints``."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    """As in a Node's ``spec.taints``."""
    storage: StorageChoice = "auto"
    """Whether the bridge provisions home's PersistentVolumeClaims in the remote."""
    daemonsets: DaemonSets = "skip"
    """Whether pods of DaemonSets that are bound to the node run in the remote, or are skipped."""
    control_plane_nodes: ControlPlaneNodes = "deny"
    """Whether pods may tolerate the taints of the remote's control plane nodes."""
    pod_security: PodSecurityLevel = "privileged"
    """The loosest Pod Security level of remote namespaces that the bridge creates."""
    pod_metadata: PodMetadata = field(default_factory=PodMetadata)
    """Labels and annotations of pods to drop or to keep."""
    certificate: Path | None = None
    """PEM files of the kubelet API's serving certificate and key; None is by ``serving``."""
    key: Path | None = None
    serving: ServingCertificate = "auto"
    """The signer of the serving certificate."""
    cert_dir: Path | None = None
    """Directory of a certificate signed by home; None is in the user's state directory."""
    service_accounts: ServiceAccounts = "home"
    """The identity of pods (`translators.pods.service_accounts`)."""
    metrics: MetricsChoice = "auto"
    """The source of resource metrics."""
    home_api: HostPort | None = None
    """Where pods reach home's API server; None is that of home's kubeconfig."""
    limits: OfferLimits = NO_LIMITS
    """How much of the remote the node offers."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the remote nodes that the virtual node represents; empty for all."""
    unschedulable_timeout: float | None = None
    """Seconds after which a pod that the remote cannot schedule becomes Failed. None is
    `ELASTIC_TIMEOUT` for a remote with ``limits.elastic``, and otherwise never: a pod that fits
    nowhere else would come back."""
    take_over_claim: str | None = None
    """The id of the other bridge's claim to take over (`bridge.remote_claim.claim_record`)."""

    @property
    def seconds_unschedulable(self) -> float | None:
        """Seconds after which a pod that the remote cannot schedule becomes Failed; None: never."""
        if self.unschedulable_timeout is None and self.limits.elastic:
            return ELASTIC_TIMEOUT
        return self.unschedulable_timeout


def invalid_option(option: str, value: str, what: str, hint: str) -> SettingsError:
    """The error for a value that is not ``what``; ``hint`` is what to use instead."""
    return SettingsError(f'{option}: "{value}" is not {what}; use {hint}')


def check_name(name: str, option: str = "--name") -> str:
    """The name of a Node: a DNS subdomain (RFC 1123)."""
    if len(name) > 253 or not _NODE_NAME.fullmatch(name):
        raise invalid_option(
            option,
            name,
            "a node name",
            "lower-case letters, digits, '-' and '.'; each part between dots starts and ends with "
            "a letter or digit",
        )
    return name


def check_secret_name(name: str) -> str:
    """The name of a Secret: a DNS subdomain (RFC 1123)."""
    if len(name) > 253 or not _NODE_NAME.fullmatch(name):
        raise invalid_option(
            "--state-secret", name, "a Secret's name", "lower-case letters, digits, '-' and '.'"
        )
    return name


def check_claim(text: str) -> str:
    """The ID of a claim (`bridge.remote_claim.claim_record`), or a UID."""
    if not re.fullmatch(r"[0-9a-f-]{16,36}", text):
        raise invalid_option(
            "--take-over-claim",
            text,
            "the ID of a claim",
            "the ID in the error of the refused join, such as 3f9c2d71a08b5e46",
        )
    return text


def check_home_name(name: str) -> str:
    """A part of the names of namespaces: a DNS label."""
    if dns_label(name) != name:
        raise invalid_option(
            "--home-name",
            name,
            "a part of a namespace's name",
            f"lower-case letters, digits and '-', such as '{dns_label(name)}'",
        )
    return name


def parse_namespaces(text: str) -> tuple[str, ...]:
    """``NAME[,NAME]``, where ``*`` matches any characters and ``?`` one; "" is none."""
    names = tuple(it.strip() for it in text.split(",")) if text else ()
    if not all(_NAMESPACE_GLOB.fullmatch(it) for it in names):
        raise invalid_option(
            "--accept-namespaces",
            text,
            "a list of namespaces",
            "NAME[,NAME], where * matches any characters, such as team-*,shop",
        )
    return names


def parse_pod_metadata(text: str) -> PodMetadata:
    """``PATTERN=drop`` or ``PATTERN=keep``, separated by commas; "" is none."""
    actions: dict[str, str] = {}
    for part in text.split(",") if text else ():
        pattern, _, action = part.strip().partition("=")
        if not _KEY_GLOB.fullmatch(pattern) or action not in ("drop", "keep"):
            raise invalid_option(
                "--pod-metadata",
                part,
                "a pattern of keys with drop or keep",
                "PATTERN=drop or PATTERN=keep, where * matches any characters, such as "
                "example.com/*=drop",
            )
        if pattern in actions:
            raise SettingsError(f"--pod-metadata: {pattern} is given twice")
        actions[pattern] = action
    return PodMetadata.from_actions(actions)


def parse_remote_namespaces(text: str) -> tuple[str, ...]:
    """``NAME[,NAME]``; "" is none."""
    names = tuple(dict.fromkeys(it.strip() for it in text.split(","))) if text else ()
    if not all(len(it) <= 63 and re.fullmatch(_LABEL, it) for it in names):
        raise invalid_option(
            "--remote-namespaces", text, "a list of namespaces", "NAME[,NAME], such as shop-e2e"
        )
    return names


def check_address(address: str) -> str:
    """An IP address that an API server can dial."""
    rejected = invalid_option(
        "--address",
        address,
        "an IP address of this machine",
        "the one at which home's API server can reach it",
    )
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise rejected from None
    if parsed.is_unspecified or parsed.is_multicast or getattr(parsed, "scope_id", None):
        raise rejected  # No other machine can dial these.
    return str(parsed)


def check_relay_address(address: str) -> str:
    """An IP address that an EndpointSlice accepts."""
    rejected = invalid_option(
        "--relay-address",
        address,
        "an IP address of this machine",
        "the one at which home's nodes and pods can reach it",
    )
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise rejected from None
    if what := forward_plan.invalid_endpoint_address(str(parsed)):
        raise SettingsError(f"{rejected}; home's API server rejects one that is {what}")
    return str(parsed)


def check_relay_cidr(text: str) -> str:
    """A network whose addresses pods can have."""
    rejected = invalid_option(
        "--relay-cidr", text, "a network", "ADDRESS/BITS, such as 10.77.0.0/24"
    )
    try:
        cidr = ipaddress.ip_network(text)
    except ValueError:
        raise rejected from None
    widest, narrowest = ipam.PREFIX_LENGTHS[cidr.version]
    if not widest <= cidr.prefixlen <= narrowest:
        raise SettingsError(f"{rejected}, from /{widest} to /{narrowest}")
    for address in (cidr.network_address, cidr.broadcast_address):
        if what := forward_plan.invalid_endpoint_address(str(address)):
            raise SettingsError(f"{rejected}; no pod can have an IP that is {what}")
    return str(cidr)


def check_network(text: str, option: str) -> str:
    """A network as in a NetworkPolicy, such as ``10.0.0.0/16``."""
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise invalid_option(
            option, text, "a network", "ADDRESS/BITS, such as 10.0.0.0/16"
        ) from None


def parse_remote_pod_cidrs(text: str) -> tuple[str, ...]:
    """``NETWORK[,NETWORK]``; "" is none."""
    networks = (it.strip() for it in text.split(",")) if text else ()
    return tuple(check_network(it, "--remote-pod-cidr") for it in networks)


def parse_ports(text: str) -> PortRange:
    """``FIRST-LAST``."""
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    ports = PortRange(int(found[1]), int(found[2])) if found else None
    if ports is None or not 0 < ports.first <= ports.last < 1 << 16:
        raise invalid_option(
            "--relay-ports", text, "a range of ports", "FIRST-LAST, such as 30000-30255"
        )
    return ports


def parse_home_api(text: str) -> HostPort:
    """``HOST[:PORT]``; an IPv6 address with a port is in brackets."""
    rejected = invalid_option(
        "--home-api-address", text, "an address", "HOST, HOST:PORT or [IPV6]:PORT"
    )
    try:
        return HostPort(str(ipaddress.IPv6Address(text)), API_PORT)
    except ValueError:
        pass
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise rejected from None
    if parts.netloc != text or "@" in text or not _API_HOST.fullmatch(host) or port == 0:
        raise rejected
    return HostPort(host, port or API_PORT)
