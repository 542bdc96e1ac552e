"""Builds a kubeconfig that works in a pod: one context, with the contents of all files inline.

The files and the entries are chosen as kubectl does: of several files, the first with an entry of
that name. Whatever only works on this machine is a `ClientConfigError` that names the alternative:
a credential plugin (the image contains none), a server or proxy on loopback. So is a server without
TLS.

`bridge.install.untrusted_kubeconfig` accepts the result when it is read back from the cluster;
other fields of the kubeconfig are dropped.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from bridge.clusters.home_api_address import is_loopback
from bridge.install import untrusted_kubeconfig
from sync.kube import kubeconfig, renewed_token
from sync.kube.api_errors import ClientConfigError
from sync.kube.endpoint import proxy_of_environment
from sync.kube.kubeconfig import Entry, Sources
from sync.kube.kubeconfig_fields import KubeconfigError
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object

#: Fields that name a file; the ``-data`` fields are for its content.
_CLUSTER_FILES = ("certificate-authority",)
_USER_FILES = ("client-certificate", "client-key")
#: Credentials that a pod cannot use, and what they do.
_UNUSABLE = {
    "exec": "runs a credential plugin",
    "auth-provider": "logs in again",
    "username": "logs in with a password",
}
_ACCOUNT = (
    "create a ServiceAccount for the bridge in the remote (`bridge rbac remote | kubectl apply -f "
    "-`) and a kubeconfig with its token (docs/how-to/install-in-cluster.md explains how)"
)


@dataclass(frozen=True, slots=True)
class FlattenedKubeconfig:
    """The text of the kubeconfig, its context, and notes for the user."""

    text: str = field(repr=False)
    context: str
    notes: tuple[str, ...] = ()


def flatten_kubeconfig(ref: KubeconfigRef) -> FlattenedKubeconfig:
    """The chosen context as a self-contained kubeconfig. Makes no request. Raises
    ClientConfigError."""
    sources = Sources()
    try:
        selection = kubeconfig.select(kubeconfig.read_files(sources, _existing(ref)), ref.context)
        notes = list(_check_usable_in_pod(ref, selection.cluster.fields, selection.user.fields))
        cluster = _inline_files(sources, selection.cluster, _CLUSTER_FILES)
        user = _inline_files(sources, selection.user, _USER_FILES)
        token, own = kubeconfig.bearer_token(sources, selection.user)
    except KubeconfigError as error:
        raise _error(ref, str(error)) from None
    if token:
        user["token"] = _renewed(token, ref) if own else token
    if not own:
        notes.append("remote: the token is copied from its file once; join again when it expires")
    name = selection.context
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": _keep(cluster, untrusted_kubeconfig.CLUSTER)}],
        "users": [{"name": name, "user": _keep(user, untrusted_kubeconfig.USER)}],
    }
    return FlattenedKubeconfig(yaml.safe_dump(config, sort_keys=False), name, tuple(notes))


def _existing(ref: KubeconfigRef) -> list[Path]:
    """The kubeconfig's existing files. Raises ClientConfigError."""
    if not (existing := [path for path in ref.paths() if path.exists()]):
        raise _error(ref, "no such file; name another with --kubeconfig")
    return existing


def _check_usable_in_pod(ref: KubeconfigRef, cluster: Object, user: Object) -> Iterator[str]:
    """Yields notes for the user. Raises ClientConfigError for what cannot work in a pod."""
    for name, what in _UNUSABLE.items():
        if user.get(name):
            raise _error(ref, f"it {what} (users[].user.{name}), which a pod cannot do; {_ACCOUNT}")
    server = urlsplit(cluster["server"])
    if server.scheme != "https":
        raise _error(ref, "its server is not an https URL; credentials are only stored for TLS")
    host = server.hostname or ""
    if is_loopback(host):
        raise _error(
            ref,
            f"its server is at {host}, which a pod cannot reach; use an address of the remote's "
            "API server that home's pods reach (kind: `kind get kubeconfig --internal`)",
        )
    proxy = cluster.get("proxy-url", "")
    if proxy and is_loopback(urlsplit(proxy).hostname or ""):
        raise _error(
            ref,
            f"its proxy-url is at {urlsplit(proxy).hostname}, which a pod cannot reach; use a "
            "proxy that home's pods reach",
        )
    if not proxy and proxy_of_environment(cluster["server"]):
        yield (
            "remote: the pods do not get the proxy of your environment; set proxy-url in the "
            "kubeconfig if they need one"
        )


def _renewed(token: str, ref: KubeconfigRef) -> str:
    """The token, or the one that a bridge on this machine has renewed it to."""
    kept = renewed_token.find(token, ref.renewed_token_files())
    renewed = renewed_token.latest(token, kept)
    return renewed.token if renewed is not None else token


def _inline_files(sources: Sources, entry: Entry, names: Iterable[str]) -> Object:
    """The fields with the contents of their files. Raises KubeconfigError."""
    fields = dict(entry.fields)
    for name in names:
        if content := kubeconfig.file_or_data(sources, entry, name):
            fields[f"{name}-data"] = base64.b64encode(content).decode()
    return fields


def _keep(fields: Object, accepted: Container[str]) -> Object:
    """The fields without those that `untrusted_kubeconfig` rejects, such as ``extensions``."""
    return {key: value for key, value in fields.items() if key in accepted}


def _error(ref: KubeconfigRef, message: str) -> ClientConfigError:
    return ClientConfigError(message, side="remote", what=f"kubeconfig {ref}")
