"""Reads kubeconfig files and selects a context, as client-go's clientcmd does.

- `sync.kube.kubeconfig_fields` checks the types of all fields; `select` the fields that exclude or
  require each other. An installation's kubeconfig passes the same checks.
- The existing files of a list are merged. The first file with an entry of a name, or with a
  current-context, takes precedence.
- Relative paths, and the command of an exec plugin that contains a path separator, are relative to
  the folder of the file that names them.
- A token file takes precedence over a token.

Every problem with a file raises `KubeconfigError`, whose message never quotes a file's content: a
kubeconfig contains keys. `sync.kube.kubeconfig_loader` makes an endpoint and a credential of the
selected context.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path

from sync.kube.kubeconfig_fields import KubeconfigError, decode_base64, parse, problem
from translators.object_accessors import Object

#: Bytes of a kubeconfig, or of a file that it names.
FILE_LIMIT = 16 * 2**20
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


class Sources:
    """The files that were read."""

    def __init__(self) -> None:
        self._digests: dict[Path, bytes] = {}

    def read(self, path: Path) -> bytes:
        """The content of a file, which is recorded unless it can be read only once, as a pipe.
        Raises OSError, also for more than `FILE_LIMIT` bytes."""
        content = _content(path)
        if path.is_file():
            self._digests[path] = _digest(content)
        return content

    def have_changed(self) -> bool:
        """Whether the content of one of the files differs now, or cannot be read."""
        for path, known in self._digests.items():
            try:
                if _digest(_content(path)) != known:
                    return True
            except OSError:
                return True
        return False


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(FILE_LIMIT + 1)
    if len(content) > FILE_LIMIT:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


#: Parsed files with their paths, in the order of precedence.
Configs = list[tuple[Path, Object]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A named entry of a kubeconfig."""

    at: str
    """Its path in the file."""
    fields: Object = field(repr=False)
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


def read_files(sources: Sources, files: Iterable[Path]) -> Configs:
    """The parsed files that are not empty. Raises KubeconfigError."""
    paths = list(files)
    configs = []
    for path in paths:
        try:
            config = parse(sources.read(path))
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
    if uses_tls(cluster) and user.fields.keys().isdisjoint(_CREDENTIALS | _CERTIFICATES):
        raise user.problem("has no credential (token, client certificate, exec plugin)")
    return Selection(name, found.fields.get("namespace", ""), cluster, user)


def _entry(configs: Configs, kind: str, name: str) -> Entry:
    for path, config in configs:
        for entry in config.get(f"{kind}s", ()):
            if entry.get("name") == name:
                shown = name if name.isprintable() else repr(name)
                return Entry(f"{kind}s[{shown}].{kind}", entry.get(kind, {}), path)
    raise KubeconfigError(f"it has no {kind} named {name!r}; see `kubectl config view`")


def uses_tls(cluster: Entry) -> bool:
    """Whether the user's credential is sent to this cluster."""
    server: str = cluster.fields["server"]
    return not server.lower().startswith("http:")


# -- checks --------------------------------------------------------------------------------------


def _check_cluster(cluster: Entry) -> None:
    if "server" not in cluster.fields:
        raise cluster.problem("has no server")
    exclusive = [_AUTHORITIES]
    if uses_tls(cluster):
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


# -- contents of files ---------------------------------------------------------------------------


def file_or_data(sources: Sources, entry: Entry, name: str) -> bytes | None:
    """The content of the ``-data`` field or of the file. Raises KubeconfigError."""
    if data := entry.fields.get(f"{name}-data"):
        return decode_base64(data)
    return _file(sources, entry, name) if name in entry.fields else None


def _file(sources: Sources, entry: Entry, name: str) -> bytes:
    path = entry.path(name)
    try:
        return sources.read(path)
    except FileNotFoundError:
        raise KubeconfigError(f"{entry.at}.{name}: no such file: {path}") from None
    except OSError as error:
        message = f"{entry.at}.{name}: {path} cannot be read: {error.strerror}"
        raise KubeconfigError(message) from None


def client_certificate(sources: Sources, user: Entry) -> tuple[bytes, bytes]:
    """The client certificate and its key (PEM); b"" without one. Raises KubeconfigError."""
    if not _CERTIFICATES & user.fields.keys():
        return b"", b""
    names = ("client-certificate", "client-key")
    certificate, key = (file_or_data(sources, user, name) for name in names)
    if not certificate:
        raise user.problem("has an empty client certificate")
    return certificate, key or b""


def bearer_token(sources: Sources, user: Entry) -> tuple[str, bool]:
    """The token, and whether the kubeconfig itself contains it. The token of the file takes
    precedence, unless it cannot be read. Raises KubeconfigError."""
    token: str = user.fields.get("token", "")
    if token != token.strip():
        raise problem(f"{user.at}.token", "has white space around the token")
    if "tokenFile" in user.fields:
        try:
            content = _file(sources, user, "tokenFile").decode("utf-8", "replace").strip()
        except KubeconfigError:
            if not token:
                raise
            content = ""
        if not (content or token):
            raise KubeconfigError(f"{user.at}.tokenFile: {user.path('tokenFile')} is empty")
        return content or token, not content
    return token, True
