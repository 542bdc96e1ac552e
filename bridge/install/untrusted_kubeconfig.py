"""Validates a kubeconfig that was read from a cluster. Pure.

A kubeconfig read from a cluster is untrusted input: any client that may write the Secret chose its
content, and client libraries run programs (``exec``, ``auth-provider``) and send the contents of
local files (``tokenFile``) that a kubeconfig names. So only what the installer writes
(`bridge.install.flattened_kubeconfig`) is accepted: one cluster over https, one user whose
credential is inline, one context. Everything else is rejected, including fields that this version
does not know. A field without a value counts as absent.

`validate` serializes the accepted fields again: the kubeconfig reader never parses the bytes that
came from the cluster.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import yaml

from sync.kube.kubeconfig import YAML_ERRORS, Dumper, KubeconfigError, Loader
from translators.object_accessors import Object

#: Size limit. A kubeconfig with two certificates and a CA bundle has about 10 KiB; parsing YAML
#: takes about a second per 256 KiB.
MAX_BYTES = 256 * 1024
#: Size limit of a list or map: YAML aliases let a small text stand for a large structure.
MAX_ENTRIES = 100
#: URL schemes of proxies that client-go and aiohttp support.
_PROXIES = ("http", "https", "socks5")


class RejectedKubeconfigError(ValueError):
    """The kubeconfig contains something that the installer never writes. The message names the
    field, never its value."""


def validate(content: bytes) -> bytes:
    """The accepted kubeconfig, serialized again. Raises RejectedKubeconfigError."""
    if len(content) > MAX_BYTES:
        raise RejectedKubeconfigError(f"it is larger than {MAX_BYTES // 1024} KiB")
    try:
        parsed = yaml.load(content.decode(), Loader)  # noqa: S506
    except KubeconfigError as error:
        raise RejectedKubeconfigError(str(error)) from None
    except YAML_ERRORS:
        # The parser's error quotes the content.
        raise RejectedKubeconfigError("it is not YAML") from None
    top = _fields(_TOP, parsed, "")
    _require(top, "contexts", "clusters", "users", "current-context")
    context = top["contexts"][0]
    _require(top["clusters"][0]["cluster"], "server", at="clusters[0].cluster")
    references = {
        "current-context": (top["current-context"], context["name"]),
        "contexts[0].context.cluster": (context["context"].get("cluster"), _name(top, "clusters")),
        "contexts[0].context.user": (context["context"].get("user"), _name(top, "users")),
    }
    for field, (reference, name) in references.items():
        if reference != name:
            raise RejectedKubeconfigError(f"{field} names no entry of the kubeconfig")
    return yaml.dump(top, Dumper=Dumper, sort_keys=False).encode()


# -- fields --------------------------------------------------------------------------------

Check = Callable[[Any, str], Any]


def _fields(known: Mapping[str, Check], value: Any, at: str) -> Object:
    if not isinstance(value, dict):
        raise RejectedKubeconfigError(f"{at or 'the kubeconfig'} is not a map of fields")
    found: Object = {}
    for key, content in value.items():
        if content is None or content in ("", [], {}):
            continue
        path = f"{at}.{key}" if at else str(key)
        if not isinstance(key, str) or (check := known.get(key)) is None:
            raise RejectedKubeconfigError(
                f"{_shown(path)} is a field that the installer does not write"
            )
        found[key] = check(content, path)
    return found


def _shown(path: str) -> str:
    """The path of an unknown field, made safe for a terminal: it is untrusted input."""
    kept = "".join(it if it.isascii() and it.isprintable() else "?" for it in path)
    return kept if len(kept) <= 80 else f"{kept[:77]}..."


def _require(found: Object, *fields: str, at: str = "") -> None:
    for field in fields:
        if field not in found:
            raise RejectedKubeconfigError(f"{at}.{field} is missing".lstrip("."))


def _name(top: Object, entries: str) -> str:
    return str(top[entries][0]["name"])


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise RejectedKubeconfigError(f"{at} is not printable text")
    return value


def _flag(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise RejectedKubeconfigError(f"{at} is not true or false")
    return value


def _base64(value: Any, at: str) -> str:
    encoded = "".join(value.split()) if isinstance(value, str) else "?"
    try:
        base64.b64decode(encoded, validate=True)
    except ValueError:
        raise RejectedKubeconfigError(f"{at} is not base64") from None
    return encoded


def _texts(value: Any, at: str) -> list[str]:
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        raise RejectedKubeconfigError(f"{at} is not a list, or has over {MAX_ENTRIES} entries")
    return [_text(it, f"{at}[{place}]") for place, it in enumerate(value)]


def _extra(value: Any, at: str) -> dict[str, list[str]]:
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise RejectedKubeconfigError(f"{at} is not a map, or has over {MAX_ENTRIES} entries")
    return {_text(key, at): _texts(its, f"{at}.{_shown(str(key))}") for key, its in value.items()}


def _url(*schemes: str) -> Check:
    def check(value: Any, at: str) -> str:
        text = _text(value, at)
        try:
            parts = urlsplit(text)
            valid = parts.port != 0 and bool(parts.hostname)
        except ValueError:
            valid = False
        if not valid or parts.scheme not in schemes or " " in text or parts.query or parts.fragment:
            raise RejectedKubeconfigError(f"{at} is not a URL of {' or '.join(schemes)}")
        return text

    return check


def _server(value: Any, at: str) -> str:
    server: str = _url("https")(value, at)
    if "@" in urlsplit(server).netloc:
        raise RejectedKubeconfigError(f"{at} has a password in it")
    return server


def _constant(expected: str) -> Check:
    def check(value: Any, at: str) -> str:
        if value != expected:
            raise RejectedKubeconfigError(f"{at} is not {expected}")
        return expected

    return check


def _only_one(key: str, known: Mapping[str, Check]) -> Check:
    """Checks a list with exactly one entry, which has a name and the fields ``known`` under
    ``key``."""

    def check(value: Any, at: str) -> list[Object]:
        if not isinstance(value, list) or len(value) != 1:
            raise RejectedKubeconfigError(f"{at} has not exactly one entry")
        entry = _fields({"name": _text, key: partial(_fields, known)}, value[0], f"{at}[0]")
        _require(entry, "name", key, at=f"{at}[0]")
        return [entry]

    return check


#: The cluster fields that the installer writes. None of them names a file.
CLUSTER: Mapping[str, Check] = {
    "server": _server,
    "certificate-authority-data": _base64,
    "insecure-skip-tls-verify": _flag,
    "tls-server-name": _text,
    "proxy-url": _url(*_PROXIES),
    "disable-compression": _flag,
}
#: The user fields that the installer writes. None of them names a file or a program.
USER: Mapping[str, Check] = {
    "token": _text,
    "client-certificate-data": _base64,
    "client-key-data": _base64,
    "as": _text,
    "as-uid": _text,
    "as-groups": _texts,
    "as-user-extra": _extra,
}
#: `kubectl config set-context` writes ``namespace``; no command here uses it.
_CONTEXT: Mapping[str, Check] = {"cluster": _text, "user": _text, "namespace": _text}
_TOP: Mapping[str, Check] = {
    "apiVersion": _constant("v1"),
    "kind": _constant("Config"),
    "current-context": _text,
    "contexts": _only_one("context", _CONTEXT),
    "clusters": _only_one("cluster", CLUSTER),
    "users": _only_one("user", USER),
}
