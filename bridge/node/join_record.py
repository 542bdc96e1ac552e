"""The join record: an annotation of the Node with the options of the join.

`bridge explain` uses the record's policy to translate pods on any machine, `bridge check NODE` the
record's settings. The record contains names, labels and addresses, no secrets. Anyone who may write
the Node may write the record: a value that no join writes counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, fields
from typing import Any, Literal, TypeAlias, get_args

from bridge.base.join_settings import (
    DEFAULT_TEMPLATE,
    HomeIdentity,
    JoinSettings,
    MetricsChoice,
    NetworkChoice,
    NetworkSource,
    RelaySettings,
    SelectedNetwork,
    ServingCertificate,
    SettingsError,
    check_network,
)
from bridge.node import node_object
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, metadata, name_of, text_or_empty
from translators.ownership_labels import DOMAIN
from translators.pod_security import PodSecurityLevel
from translators.translation_options import (
    ClusterReads,
    ControlPlaneNodes,
    DaemonSets,
    HostPort,
    Network,
    PodMetadata,
    Policy,
    ServiceAccounts,
    Storage,
)
from translators.virtual_node_identity import (
    Identity,
    NamespaceTemplateError,
    validate_namespace_template,
)

#: Where the serving certificate comes from. ``auto`` is self-signed: once a client needed a
#: certificate of home, the record is ``csr``.
CertificateSource: TypeAlias = Literal["auto", "self-signed", "csr", "files"]

#: The options as JSON, except those that the Node has elsewhere (its name and address, home's
#: name).
ANNOTATION_OPTIONS = f"{DOMAIN}/options"


def encode_policy(
    policy: Policy,
    *,
    metrics: MetricsChoice = "auto",
    certificate: CertificateSource = "auto",
    network_source: NetworkSource = "configured",
    home_identity: HomeIdentity = "service-account",
    node_restriction: bool | None = None,
    remote_ids: Collection[str] = (),
) -> str:
    """``remote_ids``: `bridge.clusters.remote_identity`."""
    content = policy_options(policy) | {
        "clusterReads": [name for name, granted in asdict(policy.cluster_reads).items() if granted],
        "remoteIds": list(remote_ids),
        "homeIdentity": home_identity,
        "metrics": metrics,
        "networkSource": network_source,
        "nodeRestriction": node_restriction,
        "servingCertificate": certificate,
    }
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def policy_options(policy: Policy) -> Object:
    """The policy's options, by config key of `join`."""
    api = policy.home_api
    return {
        "namespaceTemplate": policy.identity.namespace_template,
        "acceptNamespaces": list(policy.identity.accepted_namespaces),
        "remoteNamespaces": list(policy.remote_namespaces),
        "network": policy.network,
        "remotePodCidr": list(policy.remote_pod_cidrs),
        "relayCidr": policy.relay_cidr or None,
        "storage": policy.storage,
        "daemonsets": policy.daemonsets,
        "controlPlaneNodes": policy.control_plane_nodes,
        "podSecurity": policy.pod_security,
        "podMetadata": policy.pod_metadata.actions,
        "serviceAccounts": policy.service_accounts,
        "homeApiAddress": list(api) if api is not None else None,
        "nodeSelector": dict(policy.node_selector),
        "unschedulableTimeout": policy.unschedulable_timeout,
    }


def read_policy(node: Object, home_id: str) -> tuple[Policy, bool]:
    """The policy of the bridge that registered the Node, and whether the Node has a join record;
    without one (an older bridge) the policy has the defaults."""
    record = _record(node)
    annotations = metadata(node).get("annotations") or {}
    identity = Identity(
        home_id=home_id,
        home_name=str(annotations.get(node_object.ANNOTATION_HOME_NAME) or home_id[:8]),
        node=name_of(node),
        namespace_template=_template(record.get("namespaceTemplate")),
        accepted_namespaces=_texts(record.get("acceptNamespaces")),
    )
    policy = Policy(
        identity,
        _address(node),
        network=network_mode(node) or "flat",
        remote_pod_cidrs=_networks(record.get("remotePodCidr")),
        relay_cidr=relay_cidr(node),
        storage=recorded_storage(node) or "none",
        remote_id=node_object.remote_id_of(node),
        daemonsets=_one_of(DaemonSets, record.get("daemonsets")) or "skip",
        control_plane_nodes=_one_of(ControlPlaneNodes, record.get("controlPlaneNodes")) or "deny",
        pod_security=_one_of(PodSecurityLevel, record.get("podSecurity")) or "privileged",
        pod_metadata=PodMetadata.from_actions(_labels(record.get("podMetadata"))),
        service_accounts=_one_of(ServiceAccounts, record.get("serviceAccounts")) or "home",
        home_api=_host_port(record.get("homeApiAddress")),
        node_selector=_labels(record.get("nodeSelector")),
        unschedulable_timeout=_seconds(record.get("unschedulableTimeout")),
        remote_namespaces=remote_namespaces(node),
        cluster_reads=cluster_reads(node),
    )
    return policy, bool(record)


def recorded_storage(node: Object) -> Storage | None:
    """Whether the bridge provisions volumes; None if the Node does not record it."""
    found: Storage | None = _one_of(Storage, _record(node).get("storage"))
    return found


def home_identity(node: Object) -> HomeIdentity | None:
    """Identity of the bridge at home; None if the Node does not record it."""
    found: HomeIdentity | None = _one_of(HomeIdentity, _record(node).get("homeIdentity"))
    return found


def node_restriction(node: Object) -> bool | None:
    """Whether home's NodeRestriction confines the node's certificate; None if the join could not
    determine it, or the bridge is not the node."""
    found = _record(node).get("nodeRestriction")
    return found if isinstance(found, bool) else None


def read_settings(
    node: Object, *, home: KubeconfigRef, remote: KubeconfigRef, network: NetworkChoice
) -> JoinSettings:
    """The settings of the join that registered the Node, as far as it records them. ``network`` is
    the default for a Node without a record."""
    record = _record(node)
    policy, _ = read_policy(node, "")
    return JoinSettings(
        remote=remote,
        home=home,
        home_identity=home_identity(node) or "auto",
        name=name_of(node),
        home_name=policy.identity.home_name or None,
        address=policy.node_address or None,
        template=policy.identity.namespace_template,
        accept_namespaces=policy.identity.accepted_namespaces,
        remote_namespaces=policy.remote_namespaces,
        network=network_mode(node) or network,
        remote_pod_cidrs=policy.remote_pod_cidrs,
        relay=RelaySettings(cidr=policy.relay_cidr or None),
        storage=recorded_storage(node) or "auto",
        daemonsets=policy.daemonsets,
        control_plane_nodes=policy.control_plane_nodes,
        pod_security=policy.pod_security,
        pod_metadata=policy.pod_metadata,
        serving=_one_of(ServingCertificate, record.get("servingCertificate")) or "auto",
        service_accounts=policy.service_accounts,
        metrics=_one_of(MetricsChoice, record.get("metrics")) or "auto",
        home_api=policy.home_api,
        node_selector=policy.node_selector,
        unschedulable_timeout=policy.unschedulable_timeout,
    )


def _template(value: Any) -> str:
    """The namespace template; the default unless ``value`` is valid for some home name."""
    template = text_or_empty(value)
    try:
        validate_namespace_template(template, home_name="home")
    except NamespaceTemplateError:
        return DEFAULT_TEMPLATE
    return template


def _networks(value: Any) -> tuple[str, ...]:
    """The networks of a record, which any user of Nodes may have changed."""
    try:
        return tuple(check_network(text, "remotePodCidr") for text in _texts(value))
    except SettingsError:
        return ()


def certificate_source(node: Object) -> CertificateSource | None:
    """Where the serving certificate comes from; None if the Node does not record it."""
    source: CertificateSource | None = _one_of(
        CertificateSource, _record(node).get("servingCertificate")
    )
    return source


def network_mode(node: Object) -> Network | None:
    """The network mode; None if the Node does not record it."""
    network: Network | None = _one_of(Network, _record(node).get("network"))
    return network


def recorded_network(node: Object) -> SelectedNetwork | None:
    """The network mode and how it was determined; None if the Node does not record a mode. A
    mode without a source, as earlier versions recorded it, counts as assumed."""
    mode = network_mode(node)
    source: NetworkSource | None = _one_of(NetworkSource, _record(node).get("networkSource"))
    return SelectedNetwork(mode, source or "assumed") if mode is not None else None


def relay_cidr(node: Object | None) -> str:
    """The range for pods behind headless Services; "" for none."""
    return text_or_empty(_record(node or {}).get("relayCidr"))


def remote_namespaces(node: Object | None) -> tuple[str, ...]:
    """The remote's prepared namespaces; empty if the bridge is not limited to some."""
    return _texts(_record(node or {}).get("remoteNamespaces"))


def cluster_reads(node: Object | None) -> ClusterReads:
    """The reads of the whole remote that the bridge uses; all if the Node does not record them."""
    recorded = _record(node or {}).get("clusterReads")
    if not isinstance(recorded, list):
        return ClusterReads()
    return ClusterReads(**{it.name: it.name in recorded for it in fields(ClusterReads)})


def remote_ids(node: Object | None) -> tuple[str, ...]:
    """The identities of the remote beside that of the label (`bridge.clusters.remote_identity`)."""
    return _texts(_record(node or {}).get("remoteIds"))


def _record(node: Object) -> Object:
    """The annotation's content; empty if it is missing or malformed."""
    annotations = metadata(node).get("annotations") or {}
    try:
        value: Any = json.loads(annotations.get(ANNOTATION_OPTIONS) or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _one_of(literal: Any, value: Any) -> Any:
    """The value, if it is one of the Literal's, else None."""
    return value if value in get_args(literal) else None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(it for it in value if isinstance(it, str)) if isinstance(value, list) else ()


def _labels(value: Any) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def _seconds(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number else None
    except OverflowError:
        return None


def _host_port(value: Any) -> HostPort | None:
    match value:
        case [str(host), int(port)]:
            return HostPort(host, port)
    return None


def _address(node: Object) -> str:
    for address in (node.get("status") or {}).get("addresses") or ():
        if address.get("type") == "InternalIP":
            return str(address.get("address"))
    return ""
