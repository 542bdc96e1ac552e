"""The rights that the bridge needs on either side, and the question whether it has them.

These tables are the one source: a right that the code uses stands here. What the bridge cannot do
without is asked for at join; `bridge.rbac.manifests` writes all of it as RBAC objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from bridge.base.settings import JoinSettings, MetricsSource, NetworkChoice
from bridge.certificates import client_ca
from bridge.election import election_record
from bridge.node import namespace_record
from sync.kube.client import KubeClient
from sync.kube.errors import Side
from sync.kube.resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CONFIG_MAPS,
    DAEMON_SETS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    POD_METRICS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SECRETS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
    SERVICE_CIDRS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)
from translators.objects import Object
from translators.translation_policy import ServiceAccounts

#: Seconds for one question to an API server.
REQUEST_SECONDS = 6.0
#: Questions at once to one cluster. All 80 at once open as many connections, each of which costs
#: more than its answer, and leave 6 MB behind; these few take as long, or seven round trips where
#: the cluster is far.
MAX_CONCURRENT_REVIEWS = 8
#: A sentence with more rights than this is no sentence; the first ones show the direction.
MAX_NAMED = 6


#: All kinds that there are.
ALL_RESOURCES = Resource("*", "*", "*", "*")
#: Stands among names for that of the virtual node.
NODE = "{node}"


@dataclass(frozen=True, slots=True)
class Permission:
    """One resource (or subresource) and what is done to it, in one namespace or in all.

    ``names``: to these objects alone. The API knows no name when it is asked to create.
    """

    resource: Resource
    verbs: tuple[str, ...]
    subresource: str = ""
    namespace: str = ""
    names: tuple[str, ...] = ()

    def for_nodes(self, nodes: Collection[str]) -> Permission:
        """The right where the virtual nodes have these names; without any, of all nodes."""
        if NODE not in "".join(self.names):
            return self
        names = tuple(name.replace(NODE, node) for node in nodes for name in self.names)
        return replace(self, names=names)


#: What the node and its pods take, in whichever namespace these are: less than a kubelet may.
HOME = (
    Permission(NAMESPACES, ("get",), namespace="kube-system", names=("kube-system",)),
    Permission(NODES, ("create",)),
    Permission(NODES, ("get", "list", "watch", "patch"), names=(NODE,)),
    Permission(NODES, ("patch",), "status", names=(NODE,)),
    Permission(PODS, ("get", "list", "watch", "delete")),
    Permission(PODS, ("patch",), "status"),
    Permission(EVENTS, ("create", "get", "patch")),
    Permission(LEASES, ("create",), namespace="kube-node-lease"),
    Permission(LEASES, ("patch",), namespace="kube-node-lease", names=(NODE,)),
    # Those who stand by watch the lease of the one that serves the node.
    Permission(
        LEASES,
        ("get", "list", "watch", "patch"),
        namespace="kube-node-lease",
        names=(election_record.election_lease_name(NODE),),
    ),
    # Which namespaces of the remote the bridge created.
    Permission(
        LEASES, ("get", "patch"), namespace="kube-node-lease", names=(namespace_record.NAME,)
    ),
    Permission(TOKEN_REVIEWS, ("create",)),
    Permission(SUBJECT_ACCESS_REVIEWS, ("create",)),
)
#: What home must allow too where pods have tokens of its service accounts: the address of its API
#: server is looked up where pods cannot use the kubeconfig's.
HOME_API = (Permission(ENDPOINT_SLICES, ("get",), namespace="default", names=("kubernetes",)),)
#: What home must allow too where it is to sign the serving certificate.
HOME_CERTIFICATES = (Permission(CERTIFICATE_SIGNING_REQUESTS, ("create", "list", "watch")),)
#: What home must allow too where the bridge carries connections: the slices that say where it does.
#: They are looked for everywhere, so that what an earlier bridge left is found, and written in the
#: namespaces that are bound alone (`HOME_NAMESPACE_RELAY`).
HOME_RELAY = (Permission(ENDPOINT_SLICES, ("list", "watch")),)
#: By which `--relay-cidr` is known not to be a range of home's own. Nobody has to grant it: a
#: credential that may see them anyway is asked to, and without it less is known.
HOME_RANGES = (Permission(NODES, ("list",)), Permission(SERVICE_CIDRS, ("list",)))
#: By which `bridge check` names the DaemonSets that have a pod on the virtual node. Nobody has to
#: grant it: the check asks first whether the credential may list them, and else is not made.
HOME_DAEMON_SETS = (Permission(DAEMON_SETS, ("list",)),)
#: By which the bridge knows home's API server when it calls; without it, by a token alone.
HOME_CLIENT_CA = (
    Permission(
        CONFIG_MAPS,
        ("get", "list", "watch"),
        namespace=client_ca.NAMESPACE,
        names=(client_ca.NAME,),
    ),
)
#: What `bridge leave` takes at home beside all that.
HOME_LEAVE = (
    Permission(PODS, ("create",), "eviction"),
    Permission(CERTIFICATE_SIGNING_REQUESTS, ("list", "delete")),
    Permission(NODES, ("delete",), names=(NODE,)),
    Permission(LEASES, ("get", "delete"), namespace="kube-node-lease", names=(NODE,)),
    Permission(
        LEASES,
        ("delete",),
        namespace="kube-node-lease",
        names=(election_record.election_lease_name(NODE),),
    ),
    Permission(LEASES, ("delete",), namespace="kube-node-lease", names=(namespace_record.NAME,)),
)
#: What is read in a namespace while it has pods on the node, and the tokens that these are given.
#: Nobody has to allow it everywhere: pods of a namespace without it wait, and say so.
HOME_NAMESPACE = (
    *(Permission(kind, ("list", "watch")) for kind in (CONFIG_MAPS, SECRETS, SERVICES)),
    Permission(EVENTS, ("list",)),
)
HOME_NAMESPACE_FLAT = (Permission(ENDPOINT_SLICES, ("list", "watch")),)
HOME_NAMESPACE_RELAY = (Permission(ENDPOINT_SLICES, ("create", "patch", "delete")),)
HOME_NAMESPACE_TOKENS = (Permission(SERVICE_ACCOUNTS, ("create",), "token"),)
#: All of it in all namespaces but the claim's: pods of any namespace may come, their namespaces are
#: made when they do, and what is ours among the objects of all is found by its labels, which RBAC
#: does not know.
REMOTE = (
    Permission(NODES, ("list", "watch")),
    # Patched are the annotations by which virtual nodes claim a namespace that they share.
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
    # The claim (`bridge.remote_claim.claim_record`). Its name has home's identity, which the remote cannot know.
    Permission(LEASES, ("create", "get", "patch"), namespace="kube-node-lease"),
)
#: What `bridge leave` takes in the remote beside all that.
REMOTE_LEAVE = (Permission(LEASES, ("delete",), namespace="kube-node-lease"),)
#: By which a namespace of the bridge's is known to hold nothing of others, of whatever kind, before
#: it is removed. A kind that may not be listed keeps the namespace, no more.
REMOTE_NAMESPACE_CONTENTS = (Permission(ALL_RESOURCES, ("list",)),)
#: By which the bridge learns what pods use; either will do, and the rest works without. The first
#: is wide: on a kubelet a GET can run commands in any container of its node. The API server knows
#: no finer one for its proxy (`nodes/metrics` and the like count where a kubelet is dialled).
REMOTE_METRICS: Mapping[MetricsSource, tuple[Permission, ...]] = {
    "kubelets": (Permission(NODES, ("get",), "proxy"),),
    "api": (Permission(POD_METRICS, ("list",)),),
}


def for_webhook(namespace: str = "", name: str = "") -> tuple[Permission, ...]:
    """What the webhook in home's cluster takes: to know which namespaces are offloaded, and to keep
    its certificate and what trusts that, which are called ``name``."""
    names = (name,) if name else ()
    return (
        Permission(NAMESPACES, ("list", "watch")),
        Permission(MUTATING_WEBHOOKS, ("list", "watch", "patch"), names=names),
        Permission(SECRETS, ("list", "watch", "patch"), namespace=namespace, names=names),
    )


def required_at_home(settings: JoinSettings) -> tuple[Permission, ...]:
    """The rights that home must allow, by what is asked for."""
    tokens = HOME_API if settings.service_accounts == "home" else ()
    certificates = HOME_CERTIFICATES if settings.serving == "csr" else ()
    return (*HOME, *tokens, *certificates, *for_network(settings.network))


def for_network(network: NetworkChoice) -> tuple[Permission, ...]:
    """The rights at home that follow from how pods reach each other, but for namespaces'."""
    return HOME_RELAY if network in ("relay", "auto") else ()


def for_home_namespaces(
    *, network: NetworkChoice = "flat", service_accounts: ServiceAccounts = "home"
) -> tuple[Permission, ...]:
    """The rights in each home namespace whose pods are to run on the node."""
    flat = HOME_NAMESPACE_FLAT if network in ("flat", "auto") else ()
    relay = HOME_NAMESPACE_RELAY if network in ("relay", "auto") else ()
    tokens = HOME_NAMESPACE_TOKENS if service_accounts == "home" else ()
    return (*HOME_NAMESPACE, *flat, *relay, *tokens)


async def describe_missing(
    *, home: KubeClient, remote: KubeClient, settings: JoinSettings, node: str
) -> str:
    """One sentence that names the rights that are missing; "" where none is."""
    found = await asyncio.gather(
        missing_permissions(home, required_at_home(settings), node),
        missing_permissions(remote, REMOTE, node),
    )
    parts = []
    for client, names in zip((home, remote), found, strict=True):
        if names:
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            parts.append(
                f"{client.side}: the credential may not {', '.join(names[:MAX_NAMED])}{more} "
                f"(`{rbac_command(client.side, settings)}` prints what to apply there)"
            )
    if not parts:
        return ""
    return "; ".join(parts) + "; grant these rights or use another credential"


def rbac_command(side: Side, settings: JoinSettings) -> str:
    """What prints the rights that a join with these settings needs."""
    if side == "remote":
        return "bridge rbac remote"
    words = ["bridge rbac home"]
    if settings.serving == "csr":
        words.append("--serving-certificate csr")
    if for_network(settings.network):
        words.append(f"--network {settings.network}")
    if settings.service_accounts != "home":
        words.append(f"--service-accounts {settings.service_accounts}")
    return " ".join(words)


async def are_granted(client: KubeClient, permissions: Iterable[Permission]) -> bool:
    """Whether the credential has all of these, none of which is of the virtual node alone."""
    return not await missing_permissions(client, permissions, "")


async def missing_permissions(
    client: KubeClient, permissions: Iterable[Permission], node: str
) -> list[str]:
    """The names of those that the credential does not have, in order."""
    gate = asyncio.Semaphore(MAX_CONCURRENT_REVIEWS)

    async def may(right: Permission, verb: str, name: str) -> bool:
        async with gate:
            return await _may(client, right, verb, name)

    asked = [
        (right, verb, name)
        for right in (it.for_nodes([node]) for it in permissions)
        for verb in right.verbs
        for name in right.names or ("",)
    ]
    allowed = await asyncio.gather(*(may(*question) for question in asked))
    refused = [question for question, it in zip(asked, allowed, strict=True) if not it]
    return list(dict.fromkeys(_name(right, verb) for right, verb, _ in refused))


async def _may(client: KubeClient, right: Permission, verb: str, name: str) -> bool:
    attributes: Object = {
        "group": right.resource.group,
        "resource": right.resource.plural,
        "verb": verb,
    }
    if right.subresource:
        attributes["subresource"] = right.subresource
    if right.namespace:
        attributes["namespace"] = right.namespace
    if name:
        attributes["name"] = name
    body: Object = {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
        "spec": {"resourceAttributes": attributes},
    }
    path = SELF_SUBJECT_ACCESS_REVIEWS.path()
    answer = await client.request("POST", path, body=body, timeout=REQUEST_SECONDS)
    return bool((answer.get("status") or {}).get("allowed"))


def _name(right: Permission, verb: str) -> str:
    plural = str(right.resource)
    return f"{verb} {plural}/{right.subresource}" if right.subresource else f"{verb} {plural}"
