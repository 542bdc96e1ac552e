"""What a join is asked to do: read once at the edge, checked there, and frozen."""

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
from translators.identity import DOMAIN
from translators.names import dns_label
from translators.objects import Object
from translators.relay import forward, ipam
from translators.translation_policy import DaemonSets, HostPort, ServiceAccounts

#: The port that clients expect a kubelet on; where it stands in the Node's status they use that.
KUBELET_PORT = 10250
DEFAULT_TEMPLATE = "{namespace}-{home}"
#: Keeps pods that nobody meant to burst on home's own machines.
DEFAULT_TAINTS = f"{DOMAIN}/virtual-node=true:NoSchedule"
#: Seconds: a job that comes every few seconds must not make and remove its namespace each time.
NAMESPACE_LINGER = 60.0
#: Where an API server is where its address names no port (that of https).
API_PORT = 443
#: Who signs the serving certificate, where it does not come from files.
ServingCertificate = Literal["self-signed", "csr"]

#: How log lines are written.
LogFormat = Literal["console", "json"]

#: Where the bridge learns what pods use: from the remote's kubelets, from its metrics API, or not
#: at all.
MetricsSource = Literal["kubelets", "api", "none"]
#: What can be asked for: ``auto`` is the first of these that the remote's credential may use.
MetricsChoice = Literal["auto", "kubelets", "api", "none"]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE_GLOB = re.compile(r"[-a-z0-9*?]{1,63}")
_API_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*|[0-9a-f:.]*:[0-9a-f:.]*")


#: How pods of the two clusters reach each other, as it can be asked for: ``auto`` is ``flat`` where
#: a pod of the remote answers from here, else ``relay``.
NetworkChoice = Literal["auto", "flat", "relay", "none"]


class SettingsError(ValueError):
    """An option's value cannot be used; the message names the option and says what it takes."""


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports to listen on, from the first to the last."""

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
    """What home's Services lead to where the bridge carries connections to pods in the remote."""

    address: str | None = None
    """Where home's machines and pods reach the bridge; the node's address unless given."""
    ports: PortRange | None = None
    """What it may listen on; whatever is free unless given."""
    connections: int = 2000
    """How many are carried at once, in all."""
    per_service: int = 1000
    """And of one Service."""
    rate: float = 400.0
    """How many are begun a second, in all."""
    service_rate: float = 200.0
    """And of one Service."""
    idle: float = 3600.0
    """Seconds without a byte after which one is closed."""
    image: str = ""
    """What relay pods in the remote run, which bring connections from there; "" for none."""
    cidr: str | None = None
    """Addresses for pods behind headless Services, which home's machines lead here."""
    listeners: int = 4096
    """How many ports are listened on at once, in all; no option: it follows from how many files the
    process may have open (`bridge.net.limits`)."""


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """Everything that `bridge join` was asked for; None where it is to find out itself."""

    remote: KubeconfigRef
    """The remote's kubeconfig and context."""
    home: KubeconfigRef
    """Home's, as kubectl finds it unless given."""
    name: str | None = None
    """The virtual node's name; from the remote's context unless given."""
    home_name: str | None = None
    """What ``{home}`` stands for; from home's identity unless given, so that two homes differ."""
    address: str | None = None
    """Where home's API server reaches the kubelet API; the address that reaches it unless given."""
    port: int = KUBELET_PORT
    """The kubelet API's port; 0 takes a free one."""
    health_port: int | None = None
    """Where /livez and /readyz are answered over plain HTTP; nowhere unless given."""
    template: str = DEFAULT_TEMPLATE
    """How home's namespaces are named in the remote."""
    accept_namespaces: tuple[str, ...] = ()
    """Remote namespaces that are used when they are handed over: names, or globs."""
    network: NetworkChoice = "flat"
    """How pods of the two clusters reach each other."""
    relay: RelaySettings = RelaySettings()
    """What is carried where they do not, and ``network`` says so."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the Node is to have beside what it has by itself; so the next two."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    """As in a Node's ``spec.taints``."""
    daemonsets: DaemonSets = "skip"
    """Whether pods of DaemonSets that are bound to the node run in the remote, or are skipped."""
    namespace_linger: float = NAMESPACE_LINGER
    """Seconds that a remote namespace of ours, and copies in it, stay when no pod needs them."""
    certificate: Path | None = None
    """The kubelet API's serving certificate and its key, PEM; by ``serving`` unless given."""
    key: Path | None = None
    serving: ServingCertificate = "self-signed"
    """Whether the serving certificate is asked for at home (``csr``)."""
    cert_dir: Path | None = None
    """Where a certificate of home's is kept; in the user's state folder unless given."""
    anonymous_auth: bool = False
    """Whether callers without a credential are asked about too, as ``system:anonymous``."""
    service_accounts: ServiceAccounts = "home"
    """Whose identity pods have (`translators.pods.service_accounts`)."""
    metrics: MetricsChoice = "auto"
    """Where the bridge learns what pods use."""
    home_api: HostPort | None = None
    """Where pods reach home's API server; from home's kubeconfig unless given."""
    limits: OfferLimits = NO_LIMITS
    """How much of the remote the node offers."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the remote's nodes that the node stands for."""
    unschedulable_timeout: float | None = None
    """Seconds after which a pod that the remote cannot place is given up. Never unless given: a
    remote that makes new nodes needs minutes, and a pod that fits nowhere else would come back."""
    take_over_claim: str | None = None
    """The id of the other bridge's claim to take over (`bridge.remote_claim.claim_record`)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One join of several. ``label`` is what it is called until its node's name is known."""

    label: str
    settings: JoinSettings


def check_name(name: str, option: str = "--name") -> str:
    """A Node's name, as the API wants it (DNS subdomain). Raises SettingsError."""
    if len(name) > 253 or not _NODE_NAME.fullmatch(name):  # RFC 1123
        raise SettingsError(
            f"{option} {name!r}: a node's name has lower case letters, digits, '-' and '.', "
            "and each part between dots starts and ends with a letter or digit"
        )
    return name


def check_claim(text: str) -> str:
    """The id of a claim. Raises SettingsError."""
    if not re.fullmatch(
        r"[0-9a-f-]{16,36}", text
    ):  # as `bridge.remote_claim.claim_record` makes it, or a UID
        raise SettingsError(
            f"--take-over-claim {text!r}: give the id that the refused join shows, such as "
            "3f9c2d71a08b5e46"
        )
    return text


def check_home_name(name: str) -> str:
    """A part of namespaces' names. Raises SettingsError."""
    if dns_label(name) != name:
        raise SettingsError(
            f"--home-name {name!r}: use lower case letters, digits and '-', such as "
            f"{dns_label(name)!r}"
        )
    return name


def parse_namespaces(text: str) -> tuple[str, ...]:
    """``NAME[,NAME]``, in which ``*`` and ``?`` stand for any characters; "" for none. Raises
    SettingsError."""
    names = tuple(it.strip() for it in text.split(",")) if text else ()
    if not all(_NAMESPACE_GLOB.fullmatch(it) for it in names):
        raise SettingsError(
            f"--accept-namespaces {text!r}: give names of remote namespaces, NAME[,NAME], in "
            "which * stands for any characters, such as 'team-*,shop'"
        )
    return names


def check_address(address: str) -> str:
    """An IP address: a Node has no other that its API server dials. Raises SettingsError."""
    message = (
        f"--address {address!r}: give the IP address of this machine at which home's API "
        "server can reach it"
    )
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise SettingsError(message) from error
    if parsed.is_unspecified or parsed.is_multicast or getattr(parsed, "scope_id", None):
        raise SettingsError(message)  # Addresses that no other machine can dial.
    return str(parsed)


def check_relay_address(address: str) -> str:
    """An IP address that may stand in an EndpointSlice. Raises SettingsError."""
    message = (
        f"--relay-address {address!r}: give the IP address of this machine at which home's "
        "machines and pods can reach it"
    )
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise SettingsError(message) from error
    if what := forward.invalid_endpoint_address(str(parsed)):
        raise SettingsError(f"{message}; home's API server takes none that is {what}")
    return str(parsed)


def check_relay_cidr(text: str) -> str:
    """A network whose addresses pods can have. Raises SettingsError."""
    message = f"--relay-cidr {text!r}: write a network as ADDRESS/BITS, such as 10.77.0.0/24"
    try:
        cidr = ipaddress.ip_network(text)
    except ValueError as error:
        raise SettingsError(message) from error
    widest, narrowest = ipam.PREFIX_LENGTHS[cidr.version]
    if not widest <= cidr.prefixlen <= narrowest:
        raise SettingsError(f"{message}, with /{widest} to /{narrowest}")
    for address in (cidr.network_address, cidr.broadcast_address):
        if what := forward.invalid_endpoint_address(str(address)):
            raise SettingsError(f"{message}; no pod can have an address that is {what}")
    return str(cidr)


def check_network(text: str, option: str) -> str:
    """A network as NetworkPolicies have it, such as ``10.0.0.0/16``. Raises SettingsError."""
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        message = f"{option} {text!r}: write a network as ADDRESS/BITS, such as 10.0.0.0/16"
        raise SettingsError(message) from error


def parse_ports(text: str) -> PortRange:
    """``FIRST-LAST``. Raises SettingsError."""
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    ports = PortRange(int(found[1]), int(found[2])) if found else None
    if ports is None or not 0 < ports.first <= ports.last < 1 << 16:
        raise SettingsError(f"--relay-ports {text!r}: write FIRST-LAST, such as 30000-30255")
    return ports


def parse_home_api(text: str) -> HostPort:
    """``HOST[:PORT]``, an IPv6 address with a port in brackets. Raises SettingsError."""
    message = f"--home-api-address {text!r}: write HOST, HOST:PORT or [IPV6]:PORT"
    try:
        return HostPort(str(ipaddress.IPv6Address(text)), API_PORT)
    except ValueError:
        pass
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise SettingsError(message) from error
    if parts.netloc != text or "@" in text or not _API_HOST.fullmatch(host) or port == 0:
        raise SettingsError(message)
    return HostPort(host, port or API_PORT)
