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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from bridge.clusters.home_api_address import is_loopback
from bridge.install.untrusted_kubeconfig import CLUSTER, USER
from sync.kube import bearer_token, kubeconfig
from sync.kube.api_errors import ClientConfigError
from sync.kube.endpoint import proxy_of_environment
from sync.kube.kubeconfig import Dumper, Entry, KubeconfigError, Sources
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object

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
        authorities = kubeconfig.file_or_data(sources, selection.cluster, "certificate-authority")
        certificate, key = kubeconfig.client_certificate(sources, selection.user)
        token, own = kubeconfig.bearer_token(sources, selection.user)
    except KubeconfigError as error:
        raise _error(ref, str(error)) from None
    inline = {
        "certificate-authority-data": _encoded(authorities),
        "client-certificate-data": _encoded(certificate),
        "client-key-data": _encoded(key),
        "token": _renewed(token, ref) if token and own else token,
    }
    if not own:
        notes.append("remote: the token is copied from its file once; join again when it expires")
    name = selection.context
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": _keep(selection.cluster, inline, CLUSTER)}],
        "users": [{"name": name, "user": _keep(selection.user, inline, USER)}],
    }
    text = yaml.dump(config, Dumper=Dumper, sort_keys=False)
    return FlattenedKubeconfig(text, name, tuple(notes))


def _existing(ref: KubeconfigRef) -> list[Path]:
    """The kubeconfig's existing files. Raises ClientConfigError."""
    if not (existing := ref.existing()):
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
    kept = bearer_token.find(token, ref.renewed_token_files())
    renewed = bearer_token.latest(token, kept)
    return renewed.token if renewed is not None else token


def _keep(entry: Entry, inline: Mapping[str, str], accepted: Iterable[str]) -> Object:
    """The fields that `bridge.install.untrusted_kubeconfig` accepts, with the contents of files:
    without ``extensions``, say."""
    fields = {**entry.fields, **inline}
    return {name: fields[name] for name in accepted if fields.get(name)}


def _encoded(content: bytes | None) -> str:
    return base64.b64encode(content or b"").decode()


def _error(ref: KubeconfigRef, message: str) -> ClientConfigError:
    return ClientConfigError(message, side="remote", what=f"kubeconfig {ref}")
