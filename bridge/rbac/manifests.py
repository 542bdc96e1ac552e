"""The bridge's rights as RBAC objects, for either cluster, out of `bridge.rbac.permissions`.

`home` and `remote` give what `kubectl apply` takes in this order: a ServiceAccount with its
namespace, roles, and what binds them to it. `namespaces` gives the bindings of home's namespaces
alone, so that one more can be let in and everything else stays. What can be granted for one
namespace, or for one object by its name, is granted for no more. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bridge.base.settings import MetricsChoice, NetworkChoice, ServingCertificate, SettingsError
from bridge.rbac import permissions
from bridge.rbac.permissions import Permission
from translators.objects import Object
from translators.translation_policy import ServiceAccounts

_GROUP = "rbac.authorization.k8s.io"
_VERSION = f"{_GROUP}/v1"
_LABELS = {"app.kubernetes.io/name": "cluster-bridge"}
_DESCRIPTION = "kubernetes.io/description"
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_ACCOUNT = re.compile(rf"({_PART})/({_PART}(\.{_PART})*)")


@dataclass(frozen=True, slots=True)
class Account:
    """The ServiceAccount that has the rights."""

    namespace: str = "cluster-bridge"
    name: str = "cluster-bridge"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def role(self, what: str) -> str:
        """The name of its role for this. Two accounts of one cluster share none."""
        own = self.name if self.name == self.namespace else f"{self.namespace}:{self.name}"
        return f"{own}:{what}"


@dataclass(frozen=True, slots=True)
class HomePermissions:
    """What of `bridge join`'s options home's rights follow from."""

    nodes: Sequence[str] = ()
    """The virtual nodes' names; any unless given."""
    service_accounts: ServiceAccounts = "home"
    serving: ServingCertificate = "self-signed"
    network: NetworkChoice = "flat"
    leave: bool = False
    """Whether it is to run `bridge leave` too."""

    @property
    def cluster_level(self) -> tuple[Permission, ...]:
        """What no binding of a namespace has to grant."""
        tokens = permissions.HOME_API if self.service_accounts == "home" else ()
        certificates = permissions.HOME_CERTIFICATES if self.serving == "csr" else ()
        leave = permissions.HOME_LEAVE if self.leave else ()
        rights = (
            *permissions.HOME,
            *tokens,
            *certificates,
            *permissions.HOME_CLIENT_CA,
            *permissions.for_network(self.network),
            *leave,
        )
        return tuple(right.for_nodes(self.nodes) for right in rights)

    @property
    def per_namespace(self) -> tuple[Permission, ...]:
        """What is bound namespace by namespace."""
        return permissions.for_home_namespaces(
            network=self.network, service_accounts=self.service_accounts
        )


@dataclass(frozen=True, slots=True)
class RemotePermissions:
    """What the remote's rights follow from."""

    metrics: MetricsChoice = "api"
    """``auto``: whatever there is."""
    keep_namespaces: bool = False
    """Whether namespaces that the bridge made may stay when they are empty."""

    @property
    def cluster_level(self) -> tuple[Permission, ...]:
        """All but those by which a namespace's contents are seen."""
        asked = permissions.REMOTE_METRICS if self.metrics == "auto" else (self.metrics,)
        metrics = [permissions.REMOTE_METRICS.get(source, ()) for source in asked]
        return (
            *permissions.REMOTE,
            *permissions.REMOTE_LEAVE,
            *(right for rights in metrics for right in rights),
        )

    @property
    def namespace_contents(self) -> tuple[Permission, ...]:
        """Those by which a namespace's contents are seen."""
        return () if self.keep_namespaces else permissions.REMOTE_NAMESPACE_CONTENTS


def parse_account(text: str) -> Account:
    """``NAMESPACE/NAME``. Raises SettingsError."""
    found = _ACCOUNT.fullmatch(text)
    if found is None:
        raise SettingsError(
            f"--account {text!r}: write NAMESPACE/NAME of a ServiceAccount, such as {Account()}"
        )
    return Account(*text.split("/"))


def check_namespace(name: str) -> str:
    """A namespace's name. Raises SettingsError."""
    if len(name) > 63 or not re.fullmatch(_PART, name):  # RFC 1123
        raise SettingsError(
            f"{name!r} is no namespace's name: it has lower case letters, digits and '-'"
        )
    return name


def home_objects(
    asked: HomePermissions,
    account: Account,
    bound: Iterable[str] = (),
    *,
    all_namespaces: bool = False,
) -> list[Object]:
    """Home's objects; ``bound`` are the namespaces whose pods may run in the remote, ``everywhere``
    says that those of all may."""
    told = "What Cluster Bridge takes for its virtual node and the pods on it"
    made = _account(account) + _granted(account.role("home"), account, asked.cluster_level, told)
    per_namespace = account.role("home-namespace")
    told = "What Cluster Bridge reads in a namespace that has pods on the node; bind it there"
    made.append(_role(per_namespace, asked.per_namespace, told))
    if all_namespaces:
        made.append(_binding(per_namespace, account))
    return made + namespace_bindings(account, bound)


def namespace_bindings(account: Account, bound: Iterable[str]) -> list[Object]:
    """What lets the bridge run pods of these home namespaces. The role is among `home`'s."""
    role = account.role("home-namespace")
    return [_binding(role, account, namespace) for namespace in dict.fromkeys(bound)]


def webhook_objects(account: Account) -> list[Object]:
    """The objects of the account that a webhook in home's cluster runs by, which has the name of
    all that is the webhook's. The namespace is there."""
    told = "By which Cluster Bridge's webhook knows offloaded namespaces, and keeps its certificate"
    rights = permissions.for_webhook(account.namespace, account.name)
    return [_service_account(account), *_granted(account.role("webhook"), account, rights, told)]


def remote_objects(asked: RemotePermissions, account: Account) -> list[Object]:
    """The remote's objects."""
    told = "What Cluster Bridge takes to run pods here, and to look at its own"
    made = _account(account) + _granted(account.role("remote"), account, asked.cluster_level, told)
    if asked.namespace_contents:
        told = "By which Cluster Bridge sees that a namespace it made holds nothing of others"
        made += _cluster_wide(
            account.role("remote-contents"), account, asked.namespace_contents, told
        )
    return made


# -- objects -------------------------------------------------------------------------------


def _account(account: Account) -> list[Object]:
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": account.namespace}},
        _service_account(account),
    ]


def _service_account(account: Account) -> Object:
    meta = {"name": account.name, "namespace": account.namespace, "labels": _LABELS}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}


def _granted(name: str, account: Account, rights: Sequence[Permission], told: str) -> list[Object]:
    """Roles of that name with these rights, each where it is of use, and what binds them."""
    made = _cluster_wide(name, account, [it for it in rights if not it.namespace], told)
    for namespace in sorted({right.namespace for right in rights if right.namespace}):
        own = [it for it in rights if it.namespace == namespace]
        made += [_role(name, own, told, namespace), _binding(name, account, namespace, kind="Role")]
    return made


def _cluster_wide(
    name: str, account: Account, rights: Iterable[Permission], told: str
) -> list[Object]:
    return [_role(name, rights, told), _binding(name, account)]


def _role(name: str, rights: Iterable[Permission], told: str, namespace: str = "") -> Object:
    meta: Object = {"name": name, "labels": _LABELS, "annotations": {_DESCRIPTION: told}}
    if namespace:
        meta["namespace"] = namespace
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": _VERSION, "kind": kind, "metadata": meta, "rules": _rules(rights)}


def _binding(
    name: str, account: Account, namespace: str = "", *, kind: str = "ClusterRole"
) -> Object:
    """Gives the role of that name to the account, in the namespace or in all."""
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


def _rules(rights: Iterable[Permission]) -> list[Object]:
    """One for all resources of a group to which the same is done."""
    found: dict[tuple[object, ...], Object] = {}
    for right in rights:
        key = (right.resource.group, right.verbs, right.names)
        rule = found.setdefault(
            key,
            {"apiGroups": [right.resource.group], "resources": [], "verbs": list(right.verbs)},
        )
        plural = right.resource.plural
        rule["resources"].append(f"{plural}/{right.subresource}" if right.subresource else plural)
        if right.names:
            rule["resourceNames"] = list(right.names)
    return list(found.values())
