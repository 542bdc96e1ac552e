"""The permissions (RBAC) that the bridge needs in each cluster, and access reviews of them.

These tables are the only source: a permission that the code uses stands here. A join reviews those
that the bridge cannot work without; `bridge.rbac.rbac_manifests` writes all of them as RBAC
objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from bridge.base.join_settings import (
    HomeIdentity,
    JoinSettings,
    MetricsSource,
    NetworkChoice,
    StorageChoice,
)
from bridge.certificates import home_client_ca
from bridge.election import election_lease
from bridge.node import lease_namespace, namespace_ownership_lease
from sync.kube.api_errors import Side
from sync.kube.api_resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CONFIG_MAPS,
    CSI_STORAGE_CAPACITIES,
    DAEMON_SETS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_METRICS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SECRETS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
    SERVICE_CIDRS,
    SERVICES,
    SIGNERS,
    STORAGE_CLASSES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    VOLUME_SNAPSHOT_CLASSES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    Resource,
)
from sync.kube.client import KubeClient
from translators.object_accessors import Object
from translators.ownership_labels import DOMAIN
from translators.storage import storage_capacity
from translators.translation_options import ServiceAccounts

#: Timeout in seconds of one request.
REQUEST_SECONDS = 6.0
#: Concurrent access reviews of one cluster. All 80 at once would open as many connections, each
#: more expensive than its response, and keep 6 MB; this many take as long, or seven round trips
#: where the cluster is far.
MAX_CONCURRENT_REVIEWS = 8

#: Every resource of every API group.
ALL_RESOURCES = Resource("*", "*", "*", "*")
#: Placeholder for the virtual node's name in `Permission.names`.
NODE = "{node}"


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on one resource or subresource, in one namespace or in all.

    ``names`` limits it to these objects. A create cannot be limited: RBAC does not know the name
    then.
    """

    resource: Resource
    verbs: tuple[str, ...]
    subresource: str = ""
    namespace: str = ""
    names: tuple[str, ...] = ()

    def for_nodes(self, nodes: Collection[str]) -> Permission:
        """The permission for virtual nodes of these names; for every node if there is none."""
        if NODE not in "".join(self.names):
            return self
        names = tuple(name.replace(NODE, node) for node in nodes for name in self.names)
        return replace(self, names=names)


#: The bridge's account does this at home whatever the identity: a node may not.
HOME = (
    Permission(NAMESPACES, ("get",), namespace="kube-system", names=("kube-system",)),
    # Labels, annotations and taints: the NodeRestriction admission plugin lets a node set some
    # labels, and taints only when it registers.
    Permission(NODES, ("get", "patch"), names=(NODE,)),
    # To count a repeated Event: a node may write Events and not read them.
    Permission(EVENTS, ("get",)),
    Permission(LEASES, ("create",), namespace=lease_namespace.NAMESPACE),
    # Standby replicas watch the election Lease.
    Permission(
        LEASES,
        ("get", "list", "watch", "patch"),
        namespace=lease_namespace.NAMESPACE,
        names=(election_lease.election_lease_name(NODE),),
    ),
    # The record of the namespaces that the bridge created in the remote.
    Permission(
        LEASES,
        ("get", "patch"),
        namespace=lease_namespace.NAMESPACE,
        names=(namespace_ownership_lease.NAME,),
    ),
)
#: Permissions of an account that acts in place of the node (`--home-identity service-account`), in
#: addition: less than a kubelet's, but RBAC cannot limit them to the node's pods.
HOME_IN_PLACE_OF_NODE = (
    Permission(NODES, ("create",)),
    Permission(NODES, ("list", "watch"), names=(NODE,)),
    Permission(NODES, ("patch",), "status", names=(NODE,)),
    Permission(PODS, ("list", "watch", "delete")),
    Permission(PODS, ("patch",), "status"),
    Permission(EVENTS, ("create", "patch")),
    Permission(LEASES, ("create",), namespace="kube-node-lease"),
    Permission(LEASES, ("patch",), namespace="kube-node-lease", names=(NODE,)),
    Permission(TOKEN_REVIEWS, ("create",)),
    Permission(SUBJECT_ACCESS_REVIEWS, ("create",)),
)
#: Needed at home too where pods have tokens of home's service accounts: the address of home's API
#: server is looked up where pods cannot use the kubeconfig's.
HOME_API = (Permission(ENDPOINT_SLICES, ("get",), namespace="default", names=("kubernetes",)),)
#: Needed at home too where home signs a certificate: that of the node's identity, or the serving
#: certificate.
HOME_CERTIFICATES = (Permission(CERTIFICATE_SIGNING_REQUESTS, ("create", "list", "watch")),)
#: Needed at home too where the bridge forwards connections. EndpointSlices are listed in all
#: namespaces, to find those of an earlier bridge, and written only in bound ones
#: (`HOME_NAMESPACE_RELAY`).
HOME_RELAY = (Permission(ENDPOINT_SLICES, ("list", "watch")),)
#: Needed at home too where the bridge provisions volumes (`--storage provision`). PersistentVolumes
#: belong to no namespace; `bridge.rbac.home_policy` permits only those of the bridge's driver.
HOME_STORAGE = (
    Permission(PERSISTENT_VOLUME_CLAIMS, ("get", "list", "watch")),
    Permission(PERSISTENT_VOLUMES, ("create", "list", "watch", "patch", "delete")),
    Permission(STORAGE_CLASSES, ("list", "watch")),
    Permission(
        CSI_STORAGE_CAPACITIES,
        ("create", "list", "watch", "patch", "delete"),
        namespace=storage_capacity.NAMESPACE,
    ),
)
#: Granted with `HOME_STORAGE`, and used where other virtual nodes of the home cluster have volumes
#: in the same remote: the records of their claims distinguish them from nodes of a cloned home
#: cluster (`bridge.remote_claim.other_nodes`).
HOME_OTHER_CLAIMS = (Permission(LEASES, ("get",), namespace=lease_namespace.NAMESPACE),)
#: Granted with `HOME_STORAGE`, and used where both sides serve VolumeSnapshots: the bridge is to
#: home's snapshot controller what csi-snapshotter is beside a CSI driver.
HOME_SNAPSHOTS = (
    Permission(VOLUME_SNAPSHOTS, ("list", "watch")),
    Permission(VOLUME_SNAPSHOT_CLASSES, ("list", "watch")),
    Permission(VOLUME_SNAPSHOT_CONTENTS, ("list", "watch", "patch")),
    Permission(VOLUME_SNAPSHOT_CONTENTS, ("patch",), "status"),
)
#: Optional, and in no Role: with these the bridge checks `--relay-cidr`, and the pod IPs that the
#: remote reports, against home's node and Service ranges, where the credential has them anyway.
HOME_RANGES = (Permission(NODES, ("list",)), Permission(SERVICE_CIDRS, ("list",)))
#: Optional, and in no Role: with this `bridge check` lists the DaemonSets that have a pod on the
#: virtual node. Without it that check is skipped.
HOME_DAEMON_SETS = (Permission(DAEMON_SETS, ("list",)),)
#: Optional, and in no Role: with this a join finds out whether home's API server verifies the
#: kubelet API's certificate (`bridge.clusters.kubelet_api_probe`).
HOME_KUBELET_PROXY = (Permission(NODES, ("get",), "proxy", names=(NODE,)),)
#: Optional, and in no Role: with this and `may_approve`, the join of an administrator approves the
#: bridge's own requests (`bridge.certificates.csr_approval`).
HOME_APPROVAL = (
    Permission(CERTIFICATE_SIGNING_REQUESTS, ("get",)),
    Permission(CERTIFICATE_SIGNING_REQUESTS, ("update",), "approval"),
)
#: Identifies home's API server by its client certificate; without it, only by a token.
HOME_CLIENT_CA = (
    Permission(
        CONFIG_MAPS,
        ("get", "list", "watch"),
        namespace=home_client_ca.NAMESPACE,
        names=(home_client_ca.NAME,),
    ),
)
#: Needed at home by `bridge leave`, in addition.
HOME_LEAVE = (
    Permission(PODS, ("list", "delete")),
    Permission(PODS, ("create",), "eviction"),
    Permission(CERTIFICATE_SIGNING_REQUESTS, ("list", "delete")),
    # Home's other virtual nodes, as far as it may: their copies in the remote stay.
    Permission(NODES, ("list", "delete"), names=(NODE,)),
    # Kept alive while the pods are evicted after the bridge has stopped.
    Permission(LEASES, ("get", "patch", "delete"), namespace="kube-node-lease", names=(NODE,)),
    Permission(
        LEASES,
        ("delete",),
        namespace=lease_namespace.NAMESPACE,
        names=(election_lease.election_lease_name(NODE), namespace_ownership_lease.NAME),
    ),
    # Removed if a join created it.
    Permission(NAMESPACES, ("get",), names=(lease_namespace.NAMESPACE,)),
)
#: Reads in a namespace that has pods on the node. Granted per namespace: pods of other namespaces
#: stay Pending, with an Event that shows the required command.
HOME_NAMESPACE = (
    # A RoleBinding in a namespace covers `get` of the namespace itself, by its name.
    Permission(NAMESPACES, ("get",)),
    Permission(SERVICES, ("list", "watch")),
    Permission(EVENTS, ("list",)),
)
#: Permissions there of an account that acts in place of the node, in addition.
HOME_NAMESPACE_IN_PLACE_OF_NODE = tuple(
    Permission(kind, ("list", "watch")) for kind in (CONFIG_MAPS, SECRETS)
)
HOME_NAMESPACE_TOKENS = (Permission(SERVICE_ACCOUNTS, ("create",), "token"),)
HOME_NAMESPACE_FLAT = (Permission(ENDPOINT_SLICES, ("list", "watch")),)
HOME_NAMESPACE_RELAY = (
    Permission(ENDPOINT_SLICES, ("create", "patch", "delete")),
    # To verify addresses that EndpointSlices of users claim.
    Permission(PODS, ("get", "list")),
)
#: A PVC is given back to home's scheduler by its annotation.
HOME_NAMESPACE_STORAGE = (
    Permission(PERSISTENT_VOLUME_CLAIMS, ("patch",)),
    Permission(PERSISTENT_VOLUME_CLAIMS, ("patch",), "status"),
)
#: Cluster-wide but for the claim: pods of any home namespace may arrive, their namespaces are
#: created on demand, and RBAC cannot select objects by the bridge's labels.
REMOTE = (
    Permission(NODES, ("list", "watch")),
    # Virtual nodes that share a namespace register themselves in its annotations.
    Permission(NAMESPACES, ("create", "get", "list", "watch", "patch", "delete")),
    Permission(PODS, ("create", "get", "list", "watch", "patch", "delete")),
    Permission(PODS, ("patch",), "ephemeralcontainers"),
    Permission(PODS, ("patch",), "resize"),
    Permission(PODS, ("get",), "log"),
    Permission(PODS, ("create", "get"), "exec"),
    Permission(PODS, ("create", "get"), "attach"),
    Permission(PODS, ("create", "get"), "portforward"),
    Permission(CONFIG_MAPS, ("create", "get", "list", "watch", "patch", "delete")),
    Permission(SECRETS, ("create", "get", "list", "watch", "patch", "delete")),
    Permission(SERVICES, ("create", "get", "list", "watch", "patch", "delete")),
    Permission(ENDPOINT_SLICES, ("create", "get", "list", "watch", "patch", "delete")),
    Permission(PRIORITY_CLASSES, ("list", "watch")),
    Permission(RESOURCE_QUOTAS, ("list", "watch")),
    Permission(EVENTS, ("list", "watch")),
    # The claim (`bridge.remote_claim.claim_record`), named after home's identity.
    Permission(LEASES, ("create", "get", "patch"), namespace="kube-node-lease"),
)
#: With prepared namespaces (`--remote-namespaces`), used where granted: reads in the whole remote
#: of what the node's capacity, labels and conditions depend on, by the name of
#: `translators.translation_options.ClusterReads`. A Role can permit none of them.
REMOTE_CLUSTER_READS: Mapping[str, tuple[Permission, ...]] = {
    "nodes": (Permission(NODES, ("list", "watch")),),
    "namespaces": (Permission(NAMESPACES, ("get", "list", "watch")),),
    "pods": (Permission(PODS, ("list", "watch")),),
    "priority_classes": (Permission(PRIORITY_CLASSES, ("list", "watch")),),
    "resource_quotas": (Permission(RESOURCE_QUOTAS, ("list", "watch")),),
}
#: The claim in kube-node-lease, the same.
REMOTE_CLAIM = tuple(it for it in REMOTE if it.resource is LEASES)
#: Instead of `REMOTE`, in each prepared namespace.
REMOTE_NAMESPACE = (
    # In a namespace, a Role covers the Namespace itself, by its name (`NamedObjectInformer`).
    Permission(NAMESPACES, ("get", "watch")),
    *(
        it
        for it in REMOTE
        if it.resource in (PODS, CONFIG_MAPS, SECRETS, SERVICES, ENDPOINT_SLICES, EVENTS)
    ),
    Permission(RESOURCE_QUOTAS, ("list", "watch")),
    # The claim, or where another namespace has it, its marker (`bridge.remote_claim.claim_place`).
    Permission(LEASES, ("create", "get", "patch")),
)
#: Needed in the remote too where the bridge provisions volumes: the PVCs, and in the whole cluster
#: what decides which of them the remote can have.
REMOTE_STORAGE = (
    Permission(PERSISTENT_VOLUME_CLAIMS, ("create", "get", "list", "watch", "patch", "delete")),
)
REMOTE_STORAGE_CLASSES = (
    Permission(STORAGE_CLASSES, ("list", "watch")),
    Permission(CSI_STORAGE_CAPACITIES, ("list", "watch")),
)
#: Granted with `REMOTE_STORAGE`, and used where both sides serve VolumeSnapshots.
REMOTE_SNAPSHOTS = (Permission(VOLUME_SNAPSHOTS, ("create", "get", "list", "watch", "delete")),)
#: Needed in the remote by `bridge leave`, in addition.
REMOTE_LEAVE = (Permission(LEASES, ("delete",), namespace="kube-node-lease"),)
#: The same in each prepared namespace.
REMOTE_NAMESPACE_LEAVE = (Permission(LEASES, ("delete",)),)
#: Permits the bridge's labels and annotations where `bridge.rbac.remote_policy` reserves them. No
#: API server serves this resource: only that policy asks the authorizer for it.
REMOTE_OWNERSHIP = (Permission(Resource(DOMAIN, "v1", "ownership", "Ownership"), ("set",)),)
#: Verifies that a namespace contains no unmanaged resources before it is deleted. A resource that
#: may not be listed keeps its namespace.
REMOTE_NAMESPACE_CONTENTS = (Permission(ALL_RESOURCES, ("list",)),)
#: Reads the resource usage of pods; either suffices, and all else works without. The first is wide:
#: on a kubelet, a GET can run commands in any container of its node. The API server's node proxy
#: has no finer permission (`nodes/metrics` and the like apply to direct requests to a kubelet).
REMOTE_METRICS: Mapping[MetricsSource, tuple[Permission, ...]] = {
    "kubelets": (Permission(NODES, ("get",), "proxy"),),
    "api": (Permission(POD_METRICS, ("list",)),),
}


def for_own_token(namespace: str = "", name: str = "") -> tuple[Permission, ...]:
    """Optional in the remote: renews the token of the bridge's own ServiceAccount before it
    expires (`bridge.clusters.token_renewal`). RBAC can limit this create by name, because it is one
    of a subresource. It cannot limit the lifetime of the tokens."""
    names = (name,) if name else ()
    return (Permission(SERVICE_ACCOUNTS, ("create",), "token", namespace=namespace, names=names),)


def for_state_secret(namespace: str = "", name: str = "") -> tuple[Permission, ...]:
    """At home, for an installed bridge: keeps the node's certificate and the remote's renewed token
    in the installation's state Secret. Without these it keeps neither."""
    names = (name,) if name else ()
    verbs = ("get", "list", "watch", "patch")
    return (Permission(SECRETS, verbs, namespace=namespace, names=names),)


def for_webhook(namespace: str = "", name: str = "") -> tuple[Permission, ...]:
    """Permissions of an installed webhook: to watch offloaded namespaces, and to rotate its
    certificate and the webhook configuration, which both have this ``name``."""
    names = (name,) if name else ()
    return (
        Permission(NAMESPACES, ("list", "watch")),
        Permission(MUTATING_WEBHOOKS, ("list", "watch", "patch"), names=names),
        Permission(SECRETS, ("list", "watch", "patch"), namespace=namespace, names=names),
    )


def required_at_home(settings: JoinSettings, identity: HomeIdentity) -> tuple[Permission, ...]:
    """The permissions that the account needs at home for a join with these settings."""
    tokens = HOME_API if settings.service_accounts == "home" else ()
    needs_csr = settings.serving == "csr" and identity == "service-account"
    certificates = HOME_CERTIFICATES if needs_csr else ()
    # `auto` selects relay only where its permissions are granted.
    relay = HOME_RELAY if settings.network == "relay" else ()
    # `auto` provisions only where the permissions are granted.
    storage = HOME_STORAGE if settings.storage == "provision" else ()
    return (*HOME, *in_place_of_node(identity), *tokens, *certificates, *relay, *storage)


def in_place_of_node(identity: HomeIdentity) -> tuple[Permission, ...]:
    """The permissions of an account that acts in place of the node, outside bound namespaces."""
    return HOME_IN_PLACE_OF_NODE if identity == "service-account" else ()


def required_in_remote(settings: JoinSettings) -> tuple[Permission, ...]:
    """The permissions that a join with these settings needs in the remote."""
    namespaces = settings.remote_namespaces
    base = in_namespaces(REMOTE_NAMESPACE, namespaces) if namespaces else REMOTE
    return (*base, *(for_remote_storage(namespaces) if settings.storage == "provision" else ()))


def for_remote_storage(namespaces: Collection[str] = ()) -> tuple[Permission, ...]:
    """The permissions to provision volumes in the remote, or in its prepared namespaces."""
    claims = in_namespaces(REMOTE_STORAGE, namespaces) if namespaces else REMOTE_STORAGE
    return (*REMOTE_STORAGE_CLASSES, *claims)


def for_remote_snapshots(namespaces: Collection[str] = ()) -> tuple[Permission, ...]:
    """The permissions for snapshots in the remote, or in its prepared namespaces."""
    return in_namespaces(REMOTE_SNAPSHOTS, namespaces) if namespaces else REMOTE_SNAPSHOTS


def in_namespaces(
    granted: Iterable[Permission], namespaces: Iterable[str]
) -> tuple[Permission, ...]:
    """The permissions, in each of the namespaces."""
    all_granted = list(granted)
    return tuple(replace(it, namespace=name) for name in namespaces for it in all_granted)


def for_network(network: NetworkChoice) -> tuple[Permission, ...]:
    """The permissions at home, outside bound namespaces, to grant for the network mode."""
    return HOME_RELAY if network in ("relay", "auto") else ()


def for_home_namespaces(
    *,
    identity: HomeIdentity,
    network: NetworkChoice = "auto",
    service_accounts: ServiceAccounts = "home",
    storage: StorageChoice = "auto",
) -> tuple[Permission, ...]:
    """The permissions in each home namespace whose pods may run on the node."""
    flat = HOME_NAMESPACE_FLAT if network in ("flat", "auto") else ()
    relay = HOME_NAMESPACE_RELAY if network in ("relay", "auto") else ()
    own: tuple[Permission, ...] = ()
    if identity == "service-account":
        tokens = HOME_NAMESPACE_TOKENS if service_accounts == "home" else ()
        own = (*HOME_NAMESPACE_IN_PLACE_OF_NODE, *tokens)
    volumes = HOME_NAMESPACE_STORAGE if storage == "provision" else ()
    return (*HOME_NAMESPACE, *own, *flat, *relay, *volumes)


def rbac_command(side: Side, settings: JoinSettings) -> str:
    """The command that prints the RBAC objects for a join with these settings."""
    if side == "remote":
        named = [f"--namespace {it}" for it in settings.remote_namespaces]
        storage = ["--storage provision"] if settings.storage == "provision" else []
        return " ".join(("bridge rbac remote", *named, *storage))
    command = [f"bridge rbac home --name {settings.name or 'NODE'}"]
    if settings.home_identity == "service-account":
        command.append("--home-identity service-account")
    if settings.serving != "auto":
        command.append(f"--serving-certificate {settings.serving}")
    if settings.network != "auto":
        command.append(f"--network {settings.network}")
    if settings.service_accounts != "home":
        command.append(f"--service-accounts {settings.service_accounts}")
    if settings.storage == "provision":
        command.append("--storage provision")
    return " ".join(command)


async def are_granted(client: KubeClient, permissions: Iterable[Permission]) -> bool:
    """Whether the credential has all of these permissions. None may contain `NODE`. Raises
    KubeError."""
    return not await missing_permissions(client, permissions, "")


async def may_approve(home: KubeClient, signer: str) -> bool:
    """Whether the credential may approve requests for this signer. API servers accept the name of
    the signer, or ``DOMAIN/*`` (plugin/pkg/admission/certificates). Raises KubeError."""
    if not await are_granted(home, HOME_APPROVAL):
        return False
    domain, _, _ = signer.partition("/")
    for name in (signer, f"{domain}/*"):
        if await are_granted(home, [Permission(SIGNERS, ("approve",), names=(name,))]):
            return True
    return False


async def missing_permissions(
    client: KubeClient, permissions: Iterable[Permission], node: str
) -> list[str]:
    """The permissions that the credential lacks, as ``VERB RESOURCE``. Raises KubeError."""
    gate = asyncio.Semaphore(MAX_CONCURRENT_REVIEWS)

    async def review(permission: Permission, verb: str, name: str) -> bool:
        async with gate:
            return await _is_allowed(client, permission, verb, name)

    questions = [
        (permission, verb, name)
        for permission in (it.for_nodes([node]) for it in permissions)
        for verb in permission.verbs
        for name in permission.names or ("",)
    ]
    allowed = await asyncio.gather(*(review(*question) for question in questions))
    denied = [question for question, it in zip(questions, allowed, strict=True) if not it]
    return list(dict.fromkeys(_name(permission, verb) for permission, verb, _ in denied))


async def _is_allowed(client: KubeClient, permission: Permission, verb: str, name: str) -> bool:
    limits = {
        "subresource": permission.subresource,
        "namespace": permission.namespace,
        "name": name,
    }
    attributes = {
        "group": permission.resource.group,
        "resource": permission.resource.plural,
        "verb": verb,
        **{key: value for key, value in limits.items() if value},
    }
    reviews = SELF_SUBJECT_ACCESS_REVIEWS
    body: Object = {
        "apiVersion": reviews.api_version,
        "kind": reviews.kind,
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request("POST", reviews.path(), body=body, timeout=REQUEST_SECONDS)
    status = answer.get("status")
    return isinstance(status, dict) and bool(status.get("allowed"))


def _name(permission: Permission, verb: str) -> str:
    subresource = f"/{permission.subresource}" if permission.subresource else ""
    return f"{verb} {permission.resource}{subresource}"
