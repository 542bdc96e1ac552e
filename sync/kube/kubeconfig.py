"""Reads kubeconfig files as client-go's clientcmd does.

- `sync.kube.kubeconfig_fields` checks the types of all fields; `select` the fields that exclude or
  require each other. An installation's kubeconfig passes the same checks.
- The existing files of a list are merged. The first file with an entry of a name, or with a
  current-context, takes precedence.
- Relative paths, and the command of an exec plugin that contains a path separator, are relative to
  the folder of the file that names them.
- A token file takes precedence over a token; a client certificate, token or user name keeps an exec
  plugin from running. Without TLS no credential is read, and only impersonation applies.

Every problem with a file raises `KubeconfigError`, whose message never quotes a file's content: a
kubeconfig contains keys.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from sync.kube import credential_plugins, oidc
from sync.kube.kubeconfig_fields import KubeconfigError, decode_base64, parse, problem
from translators.object_accessors import Object

#: The extension of a cluster that exec plugins receive (client-go's tools/clientcmd/api/v1).
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")
#: The fields of a user of which at least one is needed with TLS; kubectl would prompt.
_CREDENTIALS = {"token", "tokenFile", "username", "exec", "auth-provider"}
_CERTIFICATES = {"client-certificate", "client-certificate-data"}
_KEYS = {"client-key", "client-key-data"}
_AUTHORITIES = {"certificate-authority", "certificate-authority-data"}
#: Fields of a user that kubectl does not accept together.
_EXCLUSIVE = (
    {"token", "username"},
    {"token", "password"},
    {"tokenFile", "username"},
    {"exec", "auth-provider"},
)
#: Bytes allowed in a header name (RFC 9110, token), without the percent sign, which escapes.
_TOKEN_BYTES = frozenset(
    b"!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


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

    at: str
    """Its path in the file."""
    fields: Object
    file: Path

    def path(self, name: str) -> Path:
        """The path in the field, relative to the folder of the file."""
        return self.file.absolute().parent / str(self.fields[name])

    def problem(self, what: str) -> KubeconfigError:
        return problem(self.at, what)


@dataclass(frozen=True, slots=True)
class Selection:
    """A context with its cluster and user."""

    context: str
    namespace: str
    cluster: Entry
    user: Entry


async def read(
    files: Iterable[Path], context: str | None, renewed_tokens: oidc.RenewedTokens
) -> ResolvedContext:
    """Reads the context, by default the current one, and obtains the credential from the exec
    plugin or the OIDC issuer if the user has one. Raises KubeconfigError, OidcError and OSError."""
    settings = ResolvedContext()
    selection = select(read_files(settings, files), context)
    settings.context, settings.namespace = selection.context, selection.namespace
    _apply_cluster(settings, selection.cluster)
    settings.impersonation = _impersonation(selection.user)
    if _uses_tls(selection.cluster):
        await _apply_credential(settings, selection, renewed_tokens)
    return settings


def read_files(settings: ResolvedContext, files: Iterable[Path]) -> Configs:
    """The parsed files that are not empty. Raises KubeconfigError."""
    paths = list(files)
    configs = []
    for path in paths:
        try:
            config = parse(settings.content(path))
        except OSError as error:
            raise KubeconfigError(f"{path} cannot be read: {error.strerror}") from error
        except KubeconfigError as error:
            raise KubeconfigError(f"{path}: {error}" if len(paths) > 1 else str(error)) from None
        if config is not None:
            configs.append((path, config))
    return configs


def select(configs: Configs, context: str | None) -> Selection:
    """The context with this name, or the first current-context of the files, checked as by
    client-go's tools/clientcmd/validation.go. Raises KubeconfigError."""
    if not configs:
        raise KubeconfigError("the file is empty")
    names = [config["current-context"] for _, config in configs if "current-context" in config]
    if not (name := context or next(iter(names), "")):
        raise KubeconfigError("no current-context is set; see `kubectl config use-context`")
    found = _entry(configs, "context", name)
    if "cluster" not in found.fields:
        raise found.problem("names no cluster")
    cluster = _entry(configs, "cluster", found.fields["cluster"])
    _check_cluster(cluster)
    if "user" in found.fields:
        user = _entry(configs, "user", found.fields["user"])
        _check_user(user)
    else:
        user = Entry(f"{found.at}.user", {}, found.file)
    if _uses_tls(cluster) and user.fields.keys().isdisjoint(_CREDENTIALS | _CERTIFICATES):
        raise user.problem("has no credential (token, client certificate, exec plugin)")
    return Selection(name, found.fields.get("namespace", ""), cluster, user)


def _entry(configs: Configs, kind: str, name: str) -> Entry:
    for path, config in configs:
        for entry in config.get(f"{kind}s", ()):
            if entry.get("name") == name:
                shown = name if name.isprintable() else repr(name)
                return Entry(f"{kind}s[{shown}].{kind}", entry.get(kind, {}), path)
    raise KubeconfigError(f"it has no {kind} named {name!r}; see `kubectl config view`")


def _uses_tls(cluster: Entry) -> bool:
    server: str = cluster.fields["server"]
    return not server.lower().startswith("http:")


# -- checks --------------------------------------------------------------------------------------


def _check_cluster(cluster: Entry) -> None:
    if "server" not in cluster.fields:
        raise cluster.problem("has no server")
    exclusive = [_AUTHORITIES]
    if _uses_tls(cluster):
        exclusive += [{"insecure-skip-tls-verify", name} for name in _AUTHORITIES]
    _check_exclusive(cluster, exclusive)


def _check_user(user: Entry) -> None:
    fields = user.fields
    _check_exclusive(user, _EXCLUSIVE)
    if _CERTIFICATES & fields.keys():
        _check_exclusive(user, (_CERTIFICATES, _KEYS))
        if not _KEYS & fields.keys():
            raise user.problem("has a client certificate without a client-key")
    if "exec" in fields:
        _check_plugin(Entry(f"{user.at}.exec", fields["exec"], user.file))
    if "as" not in fields and any(map(fields.get, ("as-uid", "as-groups", "as-user-extra"))):
        raise user.problem("asks to impersonate a UID, groups or extra fields without a user (as)")


def _check_exclusive(entry: Entry, exclusive: Iterable[Set[str]]) -> None:
    for names in exclusive:
        if names <= entry.fields.keys():
            both = " and ".join(sorted(names))
            raise entry.problem(f"has both {both}, of which kubectl accepts only one")


def _check_plugin(plugin: Entry) -> None:
    fields = plugin.fields
    if "command" not in fields:
        raise plugin.problem("has no command")
    version = fields.get("apiVersion")
    if version not in _EXEC_VERSIONS:
        raise plugin.problem(f"must have the apiVersion {' or '.join(_EXEC_VERSIONS)}")
    mode = fields.get("interactiveMode", "" if version == _EXEC_VERSIONS[0] else "IfAvailable")
    if mode not in _INTERACTIVE_MODES:
        raise plugin.problem(f"must have the interactiveMode {', '.join(_INTERACTIVE_MODES)}")
    if not all(variable.get("name") for variable in fields.get("env", ())):
        raise plugin.problem("has an env variable without a name")


# -- the cluster ---------------------------------------------------------------------------------


def _apply_cluster(settings: ResolvedContext, cluster: Entry) -> None:
    fields = cluster.fields
    settings.host = fields["server"].rstrip("/")
    settings.verify_ssl = not fields.get("insecure-skip-tls-verify")
    settings.tls_server_name = fields.get("tls-server-name")
    settings.proxy = fields.get("proxy-url")
    settings.ca = file_or_data(settings, cluster, "certificate-authority")


def file_or_data(settings: ResolvedContext, entry: Entry, name: str) -> bytes | None:
    """The content of the ``-data`` field or of the file. Raises KubeconfigError."""
    if data := entry.fields.get(f"{name}-data"):
        return decode_base64(data)
    return _file(settings, entry, name) if name in entry.fields else None


def _file(settings: ResolvedContext, entry: Entry, name: str) -> bytes:
    path = entry.path(name)
    try:
        return settings.content(path)
    except FileNotFoundError:
        raise KubeconfigError(f"{entry.at}.{name}: no such file: {path}") from None
    except OSError as error:
        message = f"{entry.at}.{name}: {path} cannot be read: {error.strerror}"
        raise KubeconfigError(message) from None


# -- the user ------------------------------------------------------------------------------------


async def _apply_credential(
    settings: ResolvedContext, selection: Selection, renewed_tokens: oidc.RenewedTokens
) -> None:
    user, fields = selection.user, selection.user.fields
    settings.renews_itself = not {"exec", "auth-provider", "tokenFile"}.isdisjoint(fields)
    if _CERTIFICATES & fields.keys():
        settings.cert = file_or_data(settings, user, "client-certificate")
        settings.key = file_or_data(settings, user, "client-key")
    token, own = bearer_token(settings, user)
    settings.token = token if own else ""
    config = _oidc_config(user) if "auth-provider" in fields else None
    if token:
        settings.authorization = f"Bearer {token}"
    elif "username" in fields:
        pair = f"{fields['username']}:{fields.get('password', '')}".encode()
        settings.authorization = f"Basic {base64.b64encode(pair).decode()}"
    elif "exec" in fields and settings.cert is None:
        await _run_plugin(settings, user, selection.cluster)
    elif config is not None:
        settings.authorization = f"Bearer {await oidc.id_token(user.file, config, renewed_tokens)}"
        # `oidc` may have just written the file: records its new digest.
        settings.content(user.file)


def bearer_token(settings: ResolvedContext, user: Entry) -> tuple[str, bool]:
    """The token, and whether the kubeconfig itself contains it. The token of the file takes
    precedence, unless it cannot be read. Raises KubeconfigError."""
    token: str = user.fields.get("token", "")
    if token != token.strip():
        raise problem(f"{user.at}.token", "has white space around the token")
    if "tokenFile" in user.fields:
        try:
            content = _file(settings, user, "tokenFile").decode("utf-8", "replace").strip()
        except KubeconfigError:
            if not token:
                raise
            content = ""
        if not (content or token):
            raise KubeconfigError(f"{user.at}.tokenFile: {user.path('tokenFile')} is empty")
        return content or token, not content
    return token, True


def _oidc_config(user: Entry) -> Object:
    """The checked ``config`` of the auth-provider. Raises KubeconfigError and OidcError."""
    provider: Object = user.fields["auth-provider"]
    if (name := provider.get("name", "")) != "oidc":
        raise KubeconfigError(
            f"{user.at}.auth-provider {name!r} is not supported, as in kubectl since 1.26; use an "
            "exec plugin"
        )
    config: Object = provider.get("config", {})
    oidc.check(user.file, config)
    return config


def _impersonation(user: Entry) -> list[tuple[str, str]]:
    """The headers of client-go's impersonatingRoundTripper (transport/round_trippers.go)."""
    headers = list(_impersonation_headers(user.fields))
    for _, value in headers:
        # A server may trim a value, and take it for another user.
        if not (value.isprintable() and value.isascii() and value == value.strip()):
            raise KubeconfigError(f"{user.at}: a field as… cannot be sent in a header")
    return headers


def _impersonation_headers(fields: Object) -> Iterator[tuple[str, str]]:
    if "as" in fields:
        yield "Impersonate-User", fields["as"]
    if "as-uid" in fields:
        yield "Impersonate-Uid", fields["as-uid"]
    for group in fields.get("as-groups", ()):
        yield "Impersonate-Group", group
    for key, values in fields.get("as-user-extra", {}).items():
        for value in values:
            yield f"Impersonate-Extra-{_escaped(key)}", value


def _escaped(key: str) -> str:
    """A key as part of a header name: other characters are percent-encoded."""
    return "".join(
        chr(byte) if byte in _TOKEN_BYTES else f"%{byte:02X}" for byte in key.encode("utf-8")
    )


async def _run_plugin(settings: ResolvedContext, user: Entry, cluster: Entry) -> None:
    command = user.fields["exec"]
    program = command["command"]
    if os.sep in program:
        program = str(user.file.absolute().parent / program)
    plugin = credential_plugins.Plugin(
        program=program,
        arguments=command.get("args", []),
        variables={item["name"]: item.get("value", "") for item in command.get("env", ())},
        api_version=command["apiVersion"],
        interactive=command.get("interactiveMode", "IfAvailable"),
        cluster=_cluster_info(settings, cluster) if "provideClusterInfo" in command else None,
    )
    try:
        credential = await credential_plugins.run(plugin)
    except credential_plugins.CredentialPluginError as failed:
        raise KubeconfigError(f"the credential plugin ({user.at}.exec) {failed}") from None
    if credential.token:
        settings.authorization = f"Bearer {credential.token}"
    if credential.certificate:
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
    if "disable-compression" in cluster.fields:
        info["disable-compression"] = True
    for extension in cluster.fields.get("extensions", ()):
        if extension.get("name") == _EXEC_EXTENSION:
            info["config"] = extension.get("extension")
    return info
