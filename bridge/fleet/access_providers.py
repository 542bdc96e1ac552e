"""The access providers of ClusterProfiles (KEP 4322 of SIG Multicluster): which one the bridge
uses, and where its credential is. Pure.

A ClusterProfile names providers, each with how to reach the cluster; the operator of the bridge
decides what a name means:

- A provider of the operator's file is a program, which returns a credential (`Plugin`). The object
  chooses none of its command, arguments and environment.
- ``secretreader`` and ``kubeconfig-secretreader`` mean what the API's plugins of these names do: a
  token, or the credential of a kubeconfig, in a Secret. The bridge reads the Secret itself.

Everything in a ClusterProfile is untrusted: its writer chooses the server that receives the
credential. So a Secret counts only if it belongs to the profile (`reason_not_to_use`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bridge.base.printable_text import escape_line, summarize_names
from bridge.fleet.joined_kind import Rejection
from translators.object_accessors import Object, metadata, name_of, namespace_of

#: The providers that the bridge implements itself (plugins/ of sigs.k8s.io/cluster-inventory-api).
TOKEN_SECRET, KUBECONFIG_SECRET = "secretreader", "kubeconfig-secretreader"  # names
_BUILT_IN = (TOKEN_SECRET, KUBECONFIG_SECRET)
#: The key of the token in the Secret of `TOKEN_SECRET` (SecretTokenKey in plugins/secretreader).
TOKEN_KEY = "token"  # noqa: S105  # a name
#: The extension of a cluster with a provider's own settings (KEP 4322).
CONFIG_EXTENSION = "client.authentication.k8s.io/exec"
#: On a Secret: the ClusterProfile whose credential it has, and that profile's namespace (KEP 4322).
LABEL_PROFILE = "x-k8s.io/cluster-profile"
LABEL_PROFILE_NAMESPACE = "x-k8s.io/cluster-profile-namespace"
#: Tokens of ServiceAccounts of home, which no remote may receive.
_SERVICE_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"  # noqa: S105  # a type
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
#: Longest name of a provider in a message, in characters.
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Plugin:
    """A provider of the operator's file."""

    name: str
    exec: Object = field(repr=False)
    """The ``exec`` of a kubeconfig's user."""


@dataclass(frozen=True, slots=True)
class Access:
    """The provider of a ClusterProfile that the bridge uses."""

    provider: str
    cluster: Object
    plugin: Plugin | None = None
    secret: str = ""
    """The Secret with the credential; "" if a plugin has it."""
    key: str = TOKEN_KEY
    context: str = ""
    """The context of the kubeconfig in the Secret; "" is the current one."""


def choose(profile: Object, plugins: Sequence[Plugin]) -> Access | Rejection:
    """The first provider of ``plugins``, then of the bridge's own, that the profile has."""
    offered = _offered(profile)
    named = {it.name: it for it in reversed(plugins)}
    order = [it for it in (*(it.name for it in plugins), *_BUILT_IN) if it in offered]
    if not order:
        return _no_provider(offered, [*named, *_BUILT_IN])
    name = order[0]
    cluster = offered[name]
    if name in named:
        return Access(name, cluster, named[name])
    return _in_secret(profile, name, cluster)


def _offered(profile: Object) -> dict[str, Object]:
    """The cluster of each provider of the profile; of equal names, ``accessProviders`` counts."""
    status = profile.get("status") or {}
    found: dict[str, Object] = {}
    for field_ in ("credentialProviders", "accessProviders"):
        for it in status.get(field_) or ():
            if isinstance(it, dict) and isinstance(it.get("cluster"), dict):
                found[str(it.get("name"))] = it["cluster"]
    return found


def _no_provider(offered: Mapping[str, Object], known: Sequence[str]) -> Rejection:
    if not offered:
        return Rejection(
            "NoAccessProvider",
            "status.accessProviders is empty: its cluster manager has not published how to reach "
            "the cluster",
        )
    return Rejection(
        "NoAccessProvider",
        f"its access providers are {summarize_names(map(_shown, offered))}, and the bridge has "
        f"{summarize_names(known)}; add one to the file of --clusterprofile-provider-file",
    )


def _shown(name: str) -> str:
    return escape_line(name[:_SHOWN])


def extension(cluster: Object) -> object:
    """The settings of the provider in the cluster; None if there are none."""
    for it in cluster.get("extensions") or ():
        if isinstance(it, dict) and it.get("name") == CONFIG_EXTENSION:
            return it.get("extension")
    return None


def _in_secret(profile: Object, provider: str, cluster: Object) -> Access | Rejection:
    """The access by a Secret that the extension names."""
    config = extension(cluster)
    fields = config if isinstance(config, dict) else {}
    name_field = "clusterName" if provider == TOKEN_SECRET else "name"
    secret = fields.get(name_field)
    where = f"extension {CONFIG_EXTENSION} of access provider {provider}"
    if not (isinstance(secret, str) and _NAME.fullmatch(secret)):
        return _invalid(f"{where}: {name_field} is not the name of a Secret")
    if provider == TOKEN_SECRET:
        return Access(provider, cluster, secret=secret)
    key, context = fields.get("key"), fields.get("context") or ""
    if not (isinstance(key, str) and _KEY.fullmatch(key)):
        return _invalid(f"{where}: key is not a key of a Secret")
    if not isinstance(context, str):
        return _invalid(f"{where}: context is not text")
    if fields.get("namespace") not in (None, "", namespace_of(profile)):
        return _invalid(f"{where}: namespace is another than that of the ClusterProfile")
    return Access(provider, cluster, secret=secret, key=key, context=context)


def _invalid(message: str) -> Rejection:
    return Rejection("AccessProviderInvalid", message)


def reason_not_to_use(secret: Object, profile: Object) -> str:
    """Why the Secret must not be sent to the profile's server; "" if it belongs to the profile.

    It does if it has the profile's name, also with ``-kubeconfig`` as Cluster API writes it, or
    `LABEL_PROFILE`: the writer of a profile cannot have the bridge send a Secret of another one.
    """
    labels = metadata(secret).get("labels") or {}
    name, own = name_of(secret), name_of(profile)
    if secret.get("type") == _SERVICE_ACCOUNT_TOKEN:
        return "it is the token of a ServiceAccount of home"
    labelled = labels.get(LABEL_PROFILE)
    if labelled not in (None, own):
        return f"its label {LABEL_PROFILE} names another ClusterProfile"
    if labels.get(LABEL_PROFILE_NAMESPACE) not in (None, namespace_of(profile)):
        return f"its label {LABEL_PROFILE_NAMESPACE} names another namespace"
    if labelled is None and name not in (own, f"{own}-kubeconfig"):
        return f"it belongs to the profile only with the label {LABEL_PROFILE}={own}"
    return ""
