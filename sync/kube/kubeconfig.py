"""Reads kubeconfig files and selects a context, as client-go's clientcmd does.

- `parse` checks the types of all fields (client-go's tools/clientcmd/api/v1), as kubectl does: an
  entry of a wrong type is an error even if no context refers to it. Fields that client-go does not
  know are dropped, and so are fields with Go's zero value (null, an empty string or list, false): a
  field that is present is set. `select` checks the fields that exclude or require each other. An
  installation's kubeconfig passes the same checks.
- The existing files of a list are merged. The first file with an entry of a name, or with a
  current-context, takes precedence.
- Relative paths, and the command of an exec plugin that contains a path separator, are relative to
  the folder of the file that names them.
- A token file takes precedence over a token.

Every problem raises `KubeconfigError`, which names the file, the field, or the line that is not
valid YAML, and never quotes a value: a kubeconfig contains keys. `sync.kube.kubeconfig_loader`
makes an endpoint and a credential of the selected context.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

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


# -- fields --------------------------------------------------------------------------------------


#: Checks the value of the field at this path, and returns it. Raises KubeconfigError.
Check = Callable[[Any, str], Any]


#: The errors of PyYAML for text that is not valid; its constructors raise others than YAMLError.
YAML_ERRORS = (yaml.YAMLError, ArithmeticError, LookupError, RecursionError, ValueError)
#: Values of a document, which take about two seconds to read. An alias counts as the values that it
#: refers to: a document of some lines can have any number of them.
MAX_NODES = 100_000
#: Characters that UTF-8 or the environment of a program cannot contain.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class KubeconfigError(Exception):
    """Raised when a kubeconfig cannot be used; the message has the cause and no secret. Characters
    that are not printable, as in a path, are escaped."""

    def __init__(self, message: str) -> None:
        escaped = (char if char.isprintable() else ascii(char)[1:-1] for char in message)
        super().__init__("".join(escaped))


def problem(at: str, what: str) -> KubeconfigError:
    """The error for the field or entry at this path."""
    return KubeconfigError(f"{at} {what}; see `kubectl config view`")


def decode_base64(text: str) -> bytes:
    """Decodes as Go's encoding/base64: line breaks are skipped. Raises ValueError."""
    return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)


def is_text(value: object) -> bool:
    """Whether the value is a string that UTF-8 and the environment of a program can contain."""
    return isinstance(value, str) and not _NO_TEXT.search(value)


def parse(content: bytes) -> Object | None:
    """The checked fields of a kubeconfig file; None if it is empty. Raises KubeconfigError."""
    try:
        # kubectl reads the first document.
        document = next(yaml.load_all(content.decode(), Loader), None)
    except UnicodeDecodeError:
        raise KubeconfigError("it cannot be read: it is not a text file") from None
    except YAML_ERRORS as error:
        # Without the parser's message, which quotes the content.
        mark = getattr(error, "problem_mark", None)
        where = f": line {mark.line + 1} is not valid YAML" if mark else ""
        raise KubeconfigError(f"it is not a kubeconfig{where}; see `kubectl config view`") from None
    if document is None:
        return None
    config = _checked(document)
    if config.get("apiVersion", "v1") != "v1" or config.get("kind", "Config") != "Config":
        raise KubeconfigError("its apiVersion and kind are not v1 and Config; correct them")
    return config


def _checked(document: object) -> Object:
    wrong = KubeconfigError("it is not a kubeconfig; see `kubectl config view`")
    if not isinstance(document, dict):
        raise wrong
    try:
        found = {name: check(document.get(name), name) for name, check in _TOP.items()}
    except ValueError:  # a key is a number of thousands of digits
        raise wrong from None
    return {name: value for name, value in found.items() if _is_set(value)}


class Loader(yaml.SafeLoader):
    """Reads plain scalars as kubectl does: ``y`` and ``1e3`` are no strings, but dates are. Values
    have the types of JSON. Raises KubeconfigError for more than `MAX_NODES`."""

    bool_values: ClassVar[dict[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._nodes_below: dict[yaml.Node | None, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        before = self._nodes
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        # An alias within the node that it refers to never ends.
        self._nodes += self._nodes_below.get(node, MAX_NODES) if is_alias else 1
        self._nodes_below.setdefault(node, self._nodes - before)
        if self._nodes > MAX_NODES:
            raise KubeconfigError(
                f"it has more than {MAX_NODES} values, those of aliases included; make it smaller"
            )
        return node


class Dumper(yaml.SafeDumper):
    """Quotes the strings that `Loader` and kubectl would read as another type."""


Loader.yaml_implicit_resolvers = Dumper.yaml_implicit_resolvers = {}
Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None
    or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
}
for _tag, _first, _pattern in (
    ("bool", "yYnNtTfFoO", r"(?i:true|false|yes|no|on|off|y|n)"),
    ("null", ["~", "n", "N", ""], r"~|null|Null|NULL|"),
    ("int", "-+0123456789", r"[-+]?(?:0|0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*)"),
    ("float", "-+.0123456789", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"),
    ("float", "-+.", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
    ("merge", "<", "<<"),
):
    Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first)
    )


# -- types ---------------------------------------------------------------------------------------


def _is_set(value: Any) -> bool:
    return value not in (None, "", [], False)


def _text(value: Any, at: str) -> str:
    if value is not None and not isinstance(value, str):
        raise problem(at, "must be a string (quote numbers and words such as yes)")
    if value and not is_text(value):
        raise problem(at, "must be text without NUL and surrogate characters")
    return value or ""


def _flag(value: Any, at: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise problem(at, "must be true or false, without quotes")
    return bool(value)


def _base64(value: Any, at: str) -> str:
    text = _text(value, at)
    try:
        return text if decode_base64(text) else ""
    except ValueError:
        raise problem(at, "must be base64") from None


def _any(value: Any, _at: str) -> Any:
    return value


def _list(check: Check) -> Check:
    def check_list(value: Any, at: str) -> list[Any]:
        if value is not None and not isinstance(value, list):
            raise problem(at, "must be a list")
        return [check(item, f"{at}[{place}]") for place, item in enumerate(value or [])]

    return check_list


def _map(check: Check) -> Check:
    def check_map(value: Any, at: str) -> Object:
        if value is not None and not isinstance(value, dict):
            raise problem(at, "must be a map")
        return {
            _text(str(key), at): check(content, f"{at}.{key}")
            for key, content in (value or {}).items()
        }

    return check_map


def _struct(fields: Mapping[str, Check]) -> Check:
    def check_struct(value: Any, at: str) -> Object | None:
        known = _map(_any)(value, at)
        checked = {
            name: check(known[name], f"{at}.{name}")
            for name, check in fields.items()
            if known.get(name) is not None
        }
        return {name: content for name, content in checked.items() if _is_set(content)}

    return check_struct


def _named(kind: str, check: Check) -> Check:
    """A list of entries with a unique name and the field ``kind``."""
    check_entry = _struct({"name": _text, kind: check})

    def check_entries(value: Any, at: str) -> list[Object]:
        entries: dict[str, Object] = {}
        for place, item in enumerate(_list(_any)(value, at)):
            name = item.get("name") if isinstance(item, dict) else None
            shown = name if isinstance(name, str) and name and name.isprintable() else place
            entry = check_entry(item, f"{at}[{shown}]")
            if entry.get("name", "") in entries:
                raise problem(f"{at}[{shown}]", "has the name of another entry; keep one of them")
            entries[entry.get("name", "")] = entry
        return list(entries.values())

    return check_entries


# -- a table of the fields -----------------------------------------------------------------------


def _texts(names: str) -> Mapping[str, Check]:
    return dict.fromkeys(names.split(), _text)


_EXTENSIONS = {"extensions": _named("extension", _any)}
_CLUSTER = {
    **_texts("server tls-server-name certificate-authority proxy-url"),
    "insecure-skip-tls-verify": _flag,
    "certificate-authority-data": _base64,
    "disable-compression": _flag,
    **_EXTENSIONS,
}
_EXEC = {
    **_texts("command apiVersion installHint interactiveMode"),
    "args": _list(_text),
    "env": _list(_struct(_texts("name value"))),
    "provideClusterInfo": _flag,
}
_USER = {
    **_texts("client-certificate client-key token tokenFile username password as as-uid"),
    "client-certificate-data": _base64,
    "client-key-data": _base64,
    "as-groups": _list(_text),
    "as-user-extra": _map(_list(_text)),
    "auth-provider": _struct({"name": _text, "config": _map(_text)}),
    "exec": _struct(_EXEC),
    **_EXTENSIONS,
}
_CONTEXT = {**_texts("cluster user namespace"), **_EXTENSIONS}
_TOP = {
    **_texts("apiVersion kind current-context"),
    "preferences": _struct({"colors": _flag, **_EXTENSIONS}),
    "clusters": _named("cluster", _struct(_CLUSTER)),
    "users": _named("user", _struct(_USER)),
    "contexts": _named("context", _struct(_CONTEXT)),
    **_EXTENSIONS,
}
