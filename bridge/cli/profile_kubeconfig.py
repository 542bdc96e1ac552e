"""Makes the kubeconfig of a ClusterProfile: its cluster, and one credential.

The cluster and what comes from a Secret are validated as untrusted input
(`bridge.install.untrusted_kubeconfig`); the ``exec`` of a plugin is the operator's. Every call
makes new objects: nothing of one profile gets into the kubeconfig of another.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from bridge.fleet import access_providers
from bridge.fleet.access_providers import CONFIG_EXTENSION
from bridge.fleet.joined_kind import ProfileAccess
from bridge.install import untrusted_kubeconfig
from bridge.install.untrusted_kubeconfig import RejectedKubeconfigError
from translators.object_accessors import Object

#: Limits of the settings that a plugin receives: Linux passes at most 128 KiB in one environment
#: variable, with the CA and everything else.
MAX_EXTENSION_BYTES, MAX_EXTENSION_DEPTH = 32 * 1024, 16


def build(access: ProfileAccess, name: str) -> bytes:
    """The kubeconfig for the profile ``name``. Raises RejectedKubeconfigError."""
    at = f"status.accessProviders[{access.provider}].cluster"
    cluster = {key: it for key, it in access.cluster.items() if key != "extensions"}
    if cluster.get("certificate-authority"):
        raise RejectedKubeconfigError(f"{at}.certificate-authority names a file")
    fields = untrusted_kubeconfig.accepted_cluster(cluster, at)
    if access.plugin is not None:
        fields |= _plugin_settings(access.cluster, at)
        user: Object = {"exec": dict(access.plugin)}
    elif access.token is not None:
        user = {"token": _token(access.token)}
    else:
        user = _credential(access.kubeconfig or b"", access.context)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": fields}],
        "users": [{"name": name, "user": user}],
    }
    return yaml.safe_dump(config, sort_keys=False).encode()


def _plugin_settings(cluster: Object, at: str) -> Object:
    """The cluster's extension for the plugin, which receives it as it is."""
    found = access_providers.extension(cluster)
    if found is None:
        return {}
    where = f"{at}: extension {CONFIG_EXTENSION}"
    if _depth(found) > MAX_EXTENSION_DEPTH or len(json.dumps(found)) > MAX_EXTENSION_BYTES:
        raise RejectedKubeconfigError(
            f"{where} is larger than {MAX_EXTENSION_BYTES // 1024} KiB, or has more than "
            f"{MAX_EXTENSION_DEPTH} levels"
        )
    return {"extensions": [{"name": CONFIG_EXTENSION, "extension": found}]}


def _depth(value: Any) -> int:
    """The levels of a JSON value, as far as they are within the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_EXTENSION_DEPTH:
        depth += 1
        children: list[Any] = []
        for it in level:
            children += it.values() if isinstance(it, dict) else it if isinstance(it, list) else ()
        level = children
    return depth


def _token(content: bytes) -> str:
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token:
        raise RejectedKubeconfigError("the token of the Secret is not a bearer token")
    return token


def _credential(content: bytes, context: str) -> Object:
    """The credential of one user of a kubeconfig: inline, as in `untrusted_kubeconfig`."""
    top = untrusted_kubeconfig.parse(content)
    if not isinstance(top, dict):
        raise RejectedKubeconfigError("the kubeconfig is not a map of fields")
    name = context or top.get("current-context")
    chosen = _entry(top, "context", name)
    if chosen is None:
        raise RejectedKubeconfigError("the kubeconfig has no context of that name")
    user = _entry(top, "user", chosen.get("user"))
    if user is None:
        raise RejectedKubeconfigError("the context names no user of the kubeconfig")
    accepted = untrusted_kubeconfig.accepted_user(user, "user")
    if not accepted.keys() & {"token", "client-certificate-data"}:
        raise RejectedKubeconfigError("the user has neither a token nor a client certificate")
    return accepted


def _entry(top: Object, kind: str, name: Any) -> Object | None:
    """The entry of this kind and name."""
    entries = top.get(f"{kind}s")
    for it in entries if isinstance(entries, list) else ():
        if isinstance(it, dict) and name and it.get("name") == name:
            fields = it.get(kind)
            return fields if isinstance(fields, dict) else None
    return None
