"""Reads kubeconfig files as client-go's clientcmd does.

- The existing files of a list are merged. The first file with an entry of a name, or with a
  current-context, takes precedence.
- Relative paths, and the command of an exec plugin that contains a path separator, are relative to
  the folder of the file that names them.
- A token or password takes precedence over an exec plugin; ``-data`` fields over files.

Every problem with a file raises `KubeconfigError`, whose message never quotes a file's content: a
kubeconfig contains keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sync.kube import credential_plugins, oidc
from translators.object_accessors import Object

#: The extension of a cluster that exec plugins receive (client-go's tools/clientcmd/api/v1).
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"
_KINDS = ("context", "cluster", "user")
#: Bytes allowed in a header name (RFC 9110, token), without the percent sign, which escapes.
_TOKEN_BYTES = frozenset(
    b"!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


class KubeconfigError(Exception):
    """Raised when a kubeconfig cannot be used; the message has the cause and no secret."""


@dataclass
class ResolvedContext:
    """The cluster and user of a kubeconfig's context, with all referenced files read."""

    host: str = ""
    verify_ssl: bool = True
    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    proxy: str | None = None
    authorization: str | None = field(default=None, repr=False)
    """The value of the Authorization header."""
    token: str = field(default="", repr=False)
    """The bearer token, if the kubeconfig itself contains it."""
    renews_itself: bool = False
    """Whether a plugin, an OIDC issuer or a token file renews the credential."""
    impersonation: list[tuple[str, str]] = field(default_factory=list)
    """``Impersonate-*`` headers; names may repeat."""
    context: str = ""
    namespace: str = ""
    """The namespace of the context; "" if it names none."""
    sources: dict[Path, str] = field(default_factory=dict, repr=False)
    """Every file that was read, with a digest of its content."""

    def content(self, path: Path) -> bytes:
        """Reads a file and records it as a source, unless it can be read only once, as a pipe.
        Raises OSError."""
        content = path.read_bytes()
        if path.is_file():
            self.sources[path] = digest(content)
        return content


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def changed(sources: Mapping[Path, str]) -> bool:
    """Whether the content of one of these files differs now, or cannot be read."""
    for path, known in sources.items():
        try:
            if digest(path.read_bytes()) != known:
                return True
        except OSError:
            return True
    return False


#: Parsed files with their paths, in the order of precedence.
Configs = list[tuple[Path, Object]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A named entry of a kubeconfig."""

    fields: Object
    file: Path

    def path(self, name: str) -> Path:
        """The path in the field, relative to the folder of the file."""
        return (self.file.absolute().parent / Path(str(self.fields[name])).expanduser()).absolute()


async def read(
    files: Iterable[Path], context: str | None, renewed_tokens: oidc.RenewedTokens
) -> ResolvedContext:
    """Reads the context, by default the current one, and obtains the credential from the exec
    plugin or the OIDC issuer if the user has one. Raises KubeconfigError, OidcError and OSError."""
    settings = ResolvedContext()
    configs = [(path, parsed) for path in files if (parsed := _parsed(settings, path))]
    name = context_name(configs, context)
    context_fields = find_entry(configs, "context", name).fields
    cluster = find_entry(configs, "cluster", str(context_fields.get("cluster") or ""))
    settings.context, settings.namespace = name, str(context_fields.get("namespace") or "")
    _apply_cluster(settings, cluster)
    if context_fields.get("user"):
        user = find_entry(configs, "user", str(context_fields["user"]))
        _apply_user(settings, user)
        await _obtain_credential(settings, user, cluster, renewed_tokens)
    return settings


def _parsed(settings: ResolvedContext, path: Path) -> Object | None:
    try:
        content = settings.content(path)
    except OSError as error:
        raise KubeconfigError(f"it cannot be read: {error.strerror}") from error
    return parse(content)


def parse(content: bytes) -> Object | None:
    """The parsed content of a kubeconfig file; None if it is empty. Raises KubeconfigError."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise KubeconfigError("it cannot be read: it is not a text file") from None
    wrong = KubeconfigError("it is not a kubeconfig; see `kubectl config view`")
    try:
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        raise wrong from None
    if config is None:
        return None
    lists_ok = isinstance(config, dict) and all(
        isinstance(config.get(f"{kind}s") or [], list) for kind in _KINDS
    )
    if not lists_ok:
        raise wrong
    return dict(config)


def context_name(configs: Configs, context: str | None) -> str:
    """``context``, or the first current-context of the files. Raises KubeconfigError."""
    if not configs:
        raise KubeconfigError("the file is empty")
    name = context or next(
        (str(it["current-context"]) for _, it in configs if it.get("current-context")), ""
    )
    if not name:
        raise KubeconfigError("no current-context is set; see `kubectl config use-context`")
    return name


def find_entry(configs: Configs, kind: str, name: str) -> Entry:
    """The first entry of this kind (context, cluster or user) and name. Raises KubeconfigError."""
    for path, config in configs:
        for item in config.get(f"{kind}s") or ():
            if isinstance(item, dict) and item.get("name") == name:
                fields = item.get(kind)
                if fields is not None and not isinstance(fields, dict):
                    raise KubeconfigError("it is not a kubeconfig; see `kubectl config view`")
                return Entry(fields or {}, path)
    raise KubeconfigError(f"it has no {kind} named {name!r}; see `kubectl config view`")


# -- the cluster ---------------------------------------------------------------------------------


def _apply_cluster(settings: ResolvedContext, cluster: Entry) -> None:
    fields = cluster.fields
    if not fields.get("server"):
        raise KubeconfigError("the field server is missing; see `kubectl config view`")
    settings.host = str(fields["server"]).rstrip("/")
    settings.verify_ssl = not fields.get("insecure-skip-tls-verify")
    settings.tls_server_name = _text(fields, "tls-server-name")
    settings.proxy = _text(fields, "proxy-url")
    settings.ca = _file_or_data(settings, cluster, "certificate-authority")


def _text(fields: Object, name: str) -> str | None:
    return str(fields[name]) if fields.get(name) else None


def _file_or_data(settings: ResolvedContext, entry: Entry, name: str) -> bytes | None:
    """The content of the ``-data`` field, else of the file."""
    data = entry.fields.get(f"{name}-data")
    if data:
        try:
            return base64.b64decode(str(data))
        except (binascii.Error, ValueError):
            raise KubeconfigError(f"the field {name}-data is not base64") from None
    if not entry.fields.get(name):
        return None
    return _file(settings, entry, name)


def _file(settings: ResolvedContext, entry: Entry, name: str) -> bytes:
    path = entry.path(name)
    try:
        return settings.content(path)
    except FileNotFoundError:
        raise KubeconfigError(f"no such file: {path}") from None


# -- the user ------------------------------------------------------------------------------------


def _apply_user(settings: ResolvedContext, user: Entry) -> None:
    fields = user.fields
    settings.cert = _file_or_data(settings, user, "client-certificate")
    settings.key = _file_or_data(settings, user, "client-key")
    settings.impersonation = _impersonation(fields)
    settings.renews_itself = not {"exec", "auth-provider", "tokenFile"}.isdisjoint(fields)
    token = _text(fields, "token")
    settings.token = (token or "").strip()
    if token is None and fields.get("tokenFile"):
        token = _file(settings, user, "tokenFile").decode("utf-8", "replace")
    if token is not None:
        # A token file ends with a newline.
        settings.authorization = f"Bearer {token.strip()}"
    elif fields.get("username") is not None and fields.get("password") is not None:
        pair = f"{fields['username']}:{fields['password']}".encode()
        settings.authorization = f"Basic {base64.b64encode(pair).decode()}"


def _impersonation(fields: Object) -> list[tuple[str, str]]:
    """The headers of client-go's impersonatingRoundTripper (transport/round_trippers.go)."""
    user, uid = _text(fields, "as"), _text(fields, "as-uid")
    groups, extra = fields.get("as-groups") or [], fields.get("as-user-extra") or {}
    if not isinstance(groups, list) or not isinstance(extra, dict):
        raise KubeconfigError(
            "its as-groups or as-user-extra has another type than kubectl accepts"
        )
    if user is None:
        if uid or groups or extra:
            raise KubeconfigError(
                "it asks to impersonate a UID, groups or extra fields without a user (as)"
            )
        return []
    headers = [("Impersonate-User", user)]
    headers += [("Impersonate-Uid", uid)] if uid else []
    headers += [("Impersonate-Group", str(group)) for group in groups]
    for key, values in extra.items():
        if not isinstance(values, list):
            raise KubeconfigError("its as-user-extra has a value that is not a list")
        name = f"Impersonate-Extra-{_escaped(str(key))}"
        headers += [(name, str(value)) for value in values]
    if not all(value.isprintable() and value.isascii() for _, value in headers):
        raise KubeconfigError("a field of its impersonation (as…) cannot be sent in a header")
    return headers


def _escaped(key: str) -> str:
    """A key as part of a header name: other characters are percent-encoded."""
    return "".join(
        chr(byte) if byte in _TOKEN_BYTES else f"%{byte:02X}" for byte in key.encode("utf-8")
    )


async def _obtain_credential(
    settings: ResolvedContext, user: Entry, cluster: Entry, renewed_tokens: oidc.RenewedTokens
) -> None:
    command, provider = user.fields.get("exec"), user.fields.get("auth-provider")
    if command and provider:
        raise KubeconfigError("its user has both exec and auth-provider; keep one")
    if settings.authorization is not None:
        return
    if command:
        await _run_plugin(settings, user, cluster, _mapping(command))
    elif provider:
        name = _mapping(provider).get("name")
        if name != "oidc":
            raise KubeconfigError(
                f"its auth-provider {name!r} is not supported, as in kubectl since 1.26; use an "
                "exec plugin"
            )
        token = await oidc.id_token(
            user.file, _mapping(provider.get("config") or {}), renewed_tokens
        )
        settings.authorization = f"Bearer {token}"
        # `oidc` may have just written the file: records its new digest.
        settings.content(user.file)


def _mapping(value: Any) -> Object:
    if not isinstance(value, dict):
        raise KubeconfigError("it is not a kubeconfig; see `kubectl config view`")
    return value


async def _run_plugin(
    settings: ResolvedContext, user: Entry, cluster: Entry, command: Object
) -> None:
    program = str(command.get("command") or "")
    if not program:
        raise KubeconfigError("the field command is missing; see `kubectl config view`")
    if os.sep in program:
        program = str(user.file.absolute().parent / program)
    variables = {str(it.get("name")): str(it.get("value")) for it in command.get("env") or ()}
    plugin = credential_plugins.Plugin(
        program=program,
        arguments=[str(it) for it in command.get("args") or ()],
        variables=variables,
        api_version=str(command.get("apiVersion") or ""),
        interactive=str(command.get("interactiveMode") or "IfAvailable"),
        cluster=_cluster_info(settings, cluster) if command.get("provideClusterInfo") else None,
    )
    try:
        credential = await credential_plugins.run(plugin)
    except credential_plugins.CredentialPluginError as failed:
        raise KubeconfigError(f"the credential plugin (users[].user.exec) {failed}") from None
    if credential.token:
        settings.authorization = f"Bearer {credential.token}"
    if credential.certificate and credential.key:
        settings.cert, settings.key = credential.certificate.encode(), credential.key.encode()


def _cluster_info(settings: ResolvedContext, cluster: Entry) -> Object:
    """The ``cluster`` of an ExecCredential's spec (client.authentication.k8s.io/v1)."""
    info: Object = {"server": settings.host}
    if settings.tls_server_name:
        info["tls-server-name"] = settings.tls_server_name
    if not settings.verify_ssl:
        info["insecure-skip-tls-verify"] = True
    if settings.ca:
        info["certificate-authority-data"] = base64.b64encode(settings.ca).decode()
    if settings.proxy:
        info["proxy-url"] = settings.proxy
    if cluster.fields.get("disable-compression"):
        info["disable-compression"] = True
    for extension in cluster.fields.get("extensions") or ():
        if isinstance(extension, dict) and extension.get("name") == _EXEC_EXTENSION:
            info["config"] = extension.get("extension")
    return info
