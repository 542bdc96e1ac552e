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
import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from bridge.clusters.home_api_address import is_loopback
from bridge.install import untrusted_kubeconfig
from sync.kube import http_proxy, kubeconfig, renewed_token
from sync.kube.api_errors import ClientConfigError
from sync.kube.kubeconfig import Entry, KubeconfigError
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object

#: Fields that name a file, and the fields for the file's content.
_CLUSTER_FILES = {"certificate-authority": "certificate-authority-data"}
_USER_FILES = {"client-certificate": "client-certificate-data", "client-key": "client-key-data"}
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
    files = _read_files(ref)
    try:
        name = kubeconfig.context_name(files, ref.context)
        context = kubeconfig.find_entry(files, "context", name).fields
        cluster_entry = kubeconfig.find_entry(files, "cluster", str(context.get("cluster") or ""))
        user_entry = kubeconfig.find_entry(files, "user", str(context.get("user") or ""))
    except KubeconfigError as error:
        raise _error(ref, str(error)) from None
    cluster, user = cluster_entry.fields, user_entry.fields
    notes = list(_check_usable_in_pod(ref, cluster, user))
    cluster = _inline_files(ref, cluster_entry, _CLUSTER_FILES)
    user = _inline_files(ref, user_entry, _USER_FILES)
    if user.pop("tokenFile", None) and not user.get("token"):
        user["token"] = _read_content(ref, user_entry.path("tokenFile")).decode().strip()
    elif user.get("token"):
        user["token"] = _renewed(str(user["token"]).strip(), user_entry)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": _keep(cluster, untrusted_kubeconfig.CLUSTER)}],
        "users": [{"name": name, "user": _keep(user, untrusted_kubeconfig.USER)}],
    }
    return FlattenedKubeconfig(yaml.safe_dump(config, sort_keys=False), name, tuple(notes))


def _read_files(ref: KubeconfigRef) -> kubeconfig.Configs:
    """The kubeconfig's existing files, parsed. Raises ClientConfigError."""
    paths = [Path(it).expanduser() for it in ref.files().split(os.pathsep) if it]
    if not (existing := [it for it in paths if it.exists()]):
        raise _error(ref, "no such file; name another with --kubeconfig")
    files = []
    for path in existing:
        try:
            parsed = kubeconfig.parse(path.read_bytes())
        except OSError as error:
            raise _error(ref, f"it cannot be read: {error.strerror}") from error
        except KubeconfigError as error:
            raise _error(ref, str(error)) from None
        if parsed is not None:
            files.append((path, parsed))
    return files


def _check_usable_in_pod(ref: KubeconfigRef, cluster: Object, user: Object) -> Iterator[str]:
    """Yields notes for the user. Raises ClientConfigError for what cannot work in a pod."""
    for name, what in (("exec", "runs a credential plugin"), ("auth-provider", "logs in again")):
        if user.get(name):
            raise _error(ref, f"it {what} (users[].user.{name}), which a pod cannot do; {_ACCOUNT}")
    server = urlsplit(str(cluster.get("server") or ""))
    if server.scheme != "https":
        raise _error(ref, "its server is not an https URL; credentials are only stored for TLS")
    host = server.hostname or ""
    if is_loopback(host):
        raise _error(
            ref,
            f"its server is at {host}, which a pod cannot reach; use an address of the remote's "
            "API server that home's pods reach (kind: `kind get kubeconfig --internal`)",
        )
    proxy = str(cluster.get("proxy-url") or "")
    if proxy and is_loopback(urlsplit(proxy).hostname or ""):
        raise _error(
            ref,
            f"its proxy-url is at {urlsplit(proxy).hostname}, which a pod cannot reach; use a "
            "proxy that home's pods reach",
        )
    if not proxy and http_proxy.from_environment(str(cluster.get("server") or "")):
        yield (
            "remote: the pods do not get the proxy of your environment; set proxy-url in the "
            "kubeconfig if they need one"
        )
    if user.get("tokenFile") and not user.get("token"):
        yield "remote: the token is copied from its file once; join again when it expires"


def _renewed(token: str, entry: Entry) -> str:
    """The token, or the one that a bridge on this machine has renewed it to."""
    kept = renewed_token.find(token, [entry.file.absolute().parent])
    renewed = renewed_token.latest(token, kept)
    return renewed.token if renewed is not None else token


def _inline_files(ref: KubeconfigRef, entry: Entry, files: Mapping[str, str]) -> Object:
    """The fields with the contents of their files. Inline data takes precedence, as in kubectl."""
    fields = dict(entry.fields)
    for name, data in files.items():
        if fields.pop(name, None) and not fields.get(data):
            fields[data] = base64.b64encode(_read_content(ref, entry.path(name))).decode()
    return fields


def _keep(fields: Object, accepted: Container[str]) -> Object:
    """The fields without those that `untrusted_kubeconfig` rejects, such as ``extensions``."""
    return {key: value for key, value in fields.items() if key in accepted}


def _read_content(ref: KubeconfigRef, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _error(ref, f"it names {path}, which cannot be read: {error.strerror}") from error


def _error(ref: KubeconfigRef, message: str) -> ClientConfigError:
    return ClientConfigError(message, side="remote", what=f"kubeconfig {ref}")
