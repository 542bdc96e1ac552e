"""RBAC objects that grant the permissions of `bridge.rbac.permissions` to a ServiceAccount, and the
admission policies that confine it. Pure.

`home_objects` and `remote_objects` return, in the order that `kubectl apply` needs: namespaces, the
account, roles, bindings, and policies. `namespace_bindings` returns the bindings of home
namespaces alone, to admit one more. Every permission is limited to a namespace or to named objects
where RBAC can do that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from bridge.base.join_settings import (
    HomeIdentity,
    MetricsChoice,
    NetworkChoice,
    ServingCertificate,
    SettingsError,
    StorageChoice,
    invalid_option,
)
from bridge.node import lease_namespace
from bridge.rbac import (
    home_policy,
    permissions,
    remote_policy,
)
from bridge.rbac.permissions import Permission
from translators.derived_names import truncated_name
from translators.object_accessors import Object
from translators.translation_options import ServiceAccounts

_GROUP = "rbac.authorization.k8s.io"
_VERSION = f"{_GROUP}/v1"
_LABELS = {"app.kubernetes.io/name": "cluster-bridge"}
_DESCRIPTION = "kubernetes.io/description"
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_ACCOUNT = re.compile(rf"({_PART})/({_PART}(\.{_PART})*)")


@dataclass(frozen=True, slots=True)
class Account:
    """The ServiceAccount that the permissions are granted to."""

    namespace: str = "cluster-bridge"
    name: str = "cluster-bridge"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def role(self, what: str) -> str:
        """The name of its role for this purpose. Two accounts of one cluster share no role."""
        own = self.name if self.name == self.namespace else f"{self.namespace}:{self.name}"
        return f"{own}:{what}"

    def policy(self, what: str) -> str:
        """The name of its admission policy for this purpose, a DNS subdomain."""
        own = self.name if self.name == self.namespace else f"{self.namespace}.{self.name}"
        return truncated_name(f"{own}.{what}")

    @property
    def user(self) -> str:
        """Its user name."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


@dataclass(frozen=True, slots=True)
class HomePermissions:
    """The options of `bridge join` that decide home's permissions."""

    nodes: Sequence[str]
    """Names of the virtual nodes, at least one."""
    service_accounts: ServiceAccounts = "home"
    serving: ServingCertificate = "auto"
    network: NetworkChoice = "auto"
    leave: bool = False
    """Whether the account may run `bridge leave` too."""
    identity: HomeIdentity = "service-account"
    storage: StorageChoice = "auto"
    """Only ``provision`` grants the permissions for volumes: they are not needed otherwise."""
    state_secret: tuple[str, str] | None = None
    """Namespace and name of the Secret that an installed bridge keeps its state in."""

    @property
    def cluster_level(self) -> tuple[Permission, ...]:
        """All permissions except those granted per namespace and `state`."""
        tokens = permissions.HOME_API if self.service_accounts == "home" else ()
        needs_csr = self.serving != "self-signed" or self.identity == "node"
        certificates = permissions.HOME_CERTIFICATES if needs_csr else ()
        leave = permissions.HOME_LEAVE if self.leave else ()
        volumes = (
            *permissions.HOME_STORAGE,
            *permissions.HOME_SNAPSHOTS,
            *permissions.HOME_OTHER_CLAIMS,
        )
        storage = volumes if self.storage == "provision" else ()
        granted = (
            *permissions.HOME,
            *permissions.in_place_of_node(self.identity),
            *tokens,
            *certificates,
            *permissions.HOME_CLIENT_CA,
            *permissions.for_network(self.network),
            *storage,
            *leave,
        )
        return tuple(permission.for_nodes(self.nodes) for permission in granted)

    @property
    def state(self) -> tuple[Permission, ...]:
        """The permissions for the Secret that the bridge writes."""
        return permissions.for_state_secret(*self.state_secret) if self.state_secret else ()

    @property
    def per_namespace(self) -> tuple[Permission, ...]:
        """The permissions granted namespace by namespace."""
        return permissions.for_home_namespaces(
            identity=self.identity,
            network=self.network,
            service_accounts=self.service_accounts,
            storage=self.storage,
        )


@dataclass(frozen=True, slots=True)
class RemotePermissions:
    """The options that decide the remote's permissions."""

    metrics: MetricsChoice = "api"
    """``auto`` grants every source."""
    keep_namespaces: bool = False
    """Whether empty namespaces that the bridge created may stay."""
    renew_token: bool = True
    """Whether the account may renew its own token."""
    namespaces: Sequence[str] = ()
    """The prepared namespaces, if the bridge works in these alone."""
    cluster_reads: bool = False
    """Whether the account may, beside ``namespaces``, read what these cannot show: nodes, and
    pods, quotas and names of all namespaces."""
    storage: StorageChoice = "auto"
    """Only ``provision`` grants the permissions for volumes."""

    @property
    def cluster_level(self) -> tuple[Permission, ...]:
        """All permissions except `per_namespace`, `namespace_contents` and that for the account's
        own token."""
        if not self.namespaces:
            metrics = _of_sources(self.metrics)
            base = (*permissions.REMOTE, *permissions.REMOTE_LEAVE, *permissions.REMOTE_OWNERSHIP)
            volumes = (*permissions.for_remote_storage(), *permissions.for_remote_snapshots())
            storage = volumes if self._provisions else ()
            return (*base, *metrics, *storage)
        classes = permissions.REMOTE_STORAGE_CLASSES if self._provisions else ()
        if not self.cluster_reads:
            return classes
        reads = chain.from_iterable(permissions.REMOTE_CLUSTER_READS.values())
        claim = (*permissions.REMOTE_CLAIM, *permissions.REMOTE_LEAVE)
        owned = permissions.in_namespaces(
            permissions.REMOTE_OWNERSHIP, {it.namespace for it in claim}
        )
        return (*reads, *claim, *owned, *_of_sources(self.metrics), *classes)

    @property
    def _provisions(self) -> bool:
        return self.storage == "provision"

    @property
    def per_namespace(self) -> tuple[Permission, ...]:
        """The permissions in the prepared namespaces."""
        metrics = _of_sources("api") if self.metrics in ("api", "auto") else ()
        volumes = (*permissions.REMOTE_STORAGE, *permissions.REMOTE_SNAPSHOTS)
        granted = (
            *permissions.REMOTE_NAMESPACE,
            *permissions.REMOTE_NAMESPACE_LEAVE,
            *permissions.REMOTE_OWNERSHIP,
            *(() if self.cluster_reads else metrics),
            *(volumes if self._provisions else ()),
        )
        return permissions.in_namespaces(granted, self.namespaces)

    @property
    def namespace_contents(self) -> tuple[Permission, ...]:
        """The permissions that show whether a namespace contains unmanaged resources."""
        keeps = self.keep_namespaces or self.namespaces
        return () if keeps else permissions.REMOTE_NAMESPACE_CONTENTS

    def check(self) -> None:
        """Raises SettingsError for options that exclude each other."""
        if self.cluster_reads and not self.namespaces:
            raise SettingsError("--cluster-reads requires --namespace: without, all is readable")
        if self.metrics == "kubelets" and self.namespaces and not self.cluster_reads:
            raise SettingsError(
                "--metrics kubelets is a permission on all nodes, which a Role cannot grant; use "
                "--metrics api, or add --cluster-reads"
            )


def _of_sources(choice: MetricsChoice) -> tuple[Permission, ...]:
    """The permissions to read resource metrics; those of every source for ``auto``."""
    sources = permissions.REMOTE_METRICS if choice == "auto" else (choice,)
    return tuple(it for source in sources for it in permissions.REMOTE_METRICS.get(source, ()))


def parse_account(text: str) -> Account:
    """Parses ``NAMESPACE/NAME``. Raises SettingsError."""
    found = _ACCOUNT.fullmatch(text)
    if found is None:
        raise invalid_option(
            "--account", text, "a ServiceAccount", f"NAMESPACE/NAME, such as {Account()}"
        )
    return Account(*text.split("/"))


def check_namespace(name: str) -> str:
    """Returns a valid namespace name (RFC 1123). Raises SettingsError."""
    if len(name) > 63 or not re.fullmatch(_PART, name):
        raise SettingsError(
            f"\"{name}\" is not a namespace name; use lower-case letters, digits and '-'"
        )
    return name


def home_objects(
    options: HomePermissions,
    account: Account,
    bound: Iterable[str] = (),
    *,
    all_namespaces: bool = False,
    policy: bool = True,
) -> list[Object]:
    """The objects for home; ``bound`` are the namespaces whose pods may run in the remote,
    ``all_namespaces`` admits all. Without ``policy``, RBAC objects alone."""
    description = "Permissions of Cluster Bridge for its virtual node and the pods on it"
    in_namespace = (
        "Permissions of Cluster Bridge in a namespace with pods on the node; bind it there"
    )
    keeping = "Lets Cluster Bridge keep the node's certificate and the remote's renewed token"
    per_namespace = account.role("home-namespace")
    namespaces = dict.fromkeys((account.namespace, lease_namespace.NAMESPACE))
    return [
        *map(_namespace, namespaces),
        _service_account(account),
        *_granted(account.role("home"), account, options.cluster_level, description),
        *_granted(account.role("state"), account, options.state, keeping),
        _role(per_namespace, options.per_namespace, in_namespace),
        *([_binding(per_namespace, account)] if all_namespaces else ()),
        *namespace_bindings(account, bound),
        *(_home_policies(options, account) if policy else ()),
    ]


def _home_policies(options: HomePermissions, account: Account) -> list[Object]:
    description = "Confines Cluster Bridge to its virtual node and the pods on it"
    whom = (str(account), account.user, options.nodes)
    # The policy is the same for all options, so that a wider role stays confined.
    every = HomePermissions(options.nodes, "home", "csr", "auto", leave=True, storage="provision")
    granted = (*every.cluster_level, *every.per_namespace)
    policies = home_policy.home_policy(_meta(account.policy("home"), description), *whom, granted)
    if options.leave:
        # Of all permissions only those of `bridge leave` include evictions.
        meta = _meta(account.policy("home-eviction"), description)
        policies += home_policy.eviction_policy(meta, *whom)
    return policies


def namespace_bindings(account: Account, bound: Iterable[str]) -> list[Object]:
    """The RoleBindings that admit pods of these home namespaces. `home_objects` has their role."""
    role = account.role("home-namespace")
    return [_binding(role, account, namespace) for namespace in dict.fromkeys(bound)]


def webhook_objects(account: Account) -> list[Object]:
    """The account of an installed webhook, and its roles. Everything of the webhook has the
    account's name; its namespace exists."""
    description = (
        "Permissions of Cluster Bridge's webhook: offloaded namespaces and its certificate"
    )
    granted = permissions.for_webhook(account.namespace, account.name)
    return [
        _service_account(account),
        *_granted(account.role("webhook"), account, granted, description),
    ]


def remote_objects(
    options: RemotePermissions, account: Account, *, policy: bool = False
) -> list[Object]:
    """The RBAC objects for the remote; with ``policy``, the admission policies too."""
    description = "Permissions of Cluster Bridge to run pods in this cluster"
    made = [
        _namespace(account.namespace),
        _service_account(account),
        *_granted(account.role("remote"), account, options.cluster_level, description),
        *_granted(account.role("remote-namespace"), account, options.per_namespace, description),
    ]
    if options.renew_token:
        own = permissions.for_own_token(account.namespace, account.name)
        description = "Lets Cluster Bridge renew its own token before it expires"
        made += _granted(account.role("own-token"), account, own, description)
    if contents := options.namespace_contents:
        description = (
            "Lets Cluster Bridge see that a namespace it created has no unmanaged resources"
        )
        made += _granted(account.role("remote-contents"), account, contents, description)
    if policy:
        description = (
            "Reserves the labels and annotations by which Cluster Bridge knows its objects"
        )
        made += remote_policy.reservation_policy(_meta(remote_policy.RESERVATION, description))
        description = "Confines Cluster Bridge to its own objects and namespaces"
        made += remote_policy.confinement_policy(
            _meta(account.policy("remote"), description),
            *(str(account), account.user),
            (*options.cluster_level, *options.per_namespace),
        )
    return made


# -- objects -------------------------------------------------------------------------------


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _service_account(account: Account) -> Object:
    meta = {"name": account.name, "namespace": account.namespace, "labels": _LABELS}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}


def _meta(name: str, description: str) -> Object:
    return {"name": name, "labels": _LABELS, "annotations": {_DESCRIPTION: description}}


def _granted(
    name: str, account: Account, granted: Sequence[Permission], description: str
) -> list[Object]:
    """Roles of this name with these permissions, one for each namespace that they are limited to,
    and their bindings."""
    made = []
    for namespace in sorted({it.namespace for it in granted}):
        own = [it for it in granted if it.namespace == namespace]
        kind = "Role" if namespace else "ClusterRole"
        made += [
            _role(name, own, description, namespace),
            _binding(name, account, namespace, kind=kind),
        ]
    return made


def _role(
    name: str, granted: Iterable[Permission], description: str, namespace: str = ""
) -> Object:
    meta = _meta(name, description)
    if namespace:
        meta["namespace"] = namespace
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": _VERSION, "kind": kind, "metadata": meta, "rules": _rules(granted)}


def _binding(
    name: str, account: Account, namespace: str = "", *, kind: str = "ClusterRole"
) -> Object:
    """Binds the role of this name to the account, in one namespace or in all."""
    meta: Object = {"name": name, "labels": _LABELS}
    if namespace:
        meta["namespace"] = namespace
    return {
        "apiVersion": _VERSION,
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": name},
        "subjects": [
            {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
        ],
    }


def _rules(granted: Iterable[Permission]) -> list[Object]:
    """One rule for all resources of a group that have the same verbs and names."""
    found: dict[tuple[object, ...], Object] = {}
    for permission in granted:
        group, verbs, names = permission.resource.group, permission.verbs, permission.names
        rule = {"apiGroups": [group], "resources": [], "verbs": list(verbs)}
        rule = found.setdefault((group, verbs, names), rule)
        subresource = f"/{permission.subresource}" if permission.subresource else ""
        rule["resources"].append(f"{permission.resource.plural}{subresource}")
        if names:
            rule["resourceNames"] = list(names)
    return list(found.values())
