"""Kubeconfigs, and the user as whom kubectl acts with each of them.

`CASES` has them by dimension. A text in a case can contain names of `e2e.api_server_users`, such as
``$alice`` for a token, and ``$folder``, the folder of the case's files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import yaml

from e2e.kubectl import Json

#: An address where no server listens.
CLOSED = "127.0.0.1:1"

_ADDRESS: Json = {"server": "$server"}
_CA: Json = {"certificate-authority-data": "$ca"}
_CLUSTER: Json = _ADDRESS | _CA
_ALICE: Json = {"token": "$alice"}
_ADMIN: Json = {"token": "$admin"}
_CAROL: Json = {"client-certificate-data": "$carol_cert", "client-key-data": "$carol_key"}
_CAROL_FILES = {"carol.crt": "$carol_cert_pem", "carol.key": "$carol_key_pem"}
_DAVE_FILES = {"dave.crt": "$dave_cert_pem", "dave.key": "$dave_key_pem"}


@dataclass(frozen=True, slots=True)
class Case:
    """A kubeconfig and the files next to it."""

    name: str
    answer: str
    """The user that kubectl reports; "" if it gets no answer."""
    user: Any = field(default_factory=lambda: _ALICE)
    cluster: Any = field(default_factory=lambda: _CLUSTER)
    context: Json = field(default_factory=dict)
    """Further fields of the context, which names cluster `c` and user `u`."""
    config: Json = field(default_factory=dict)
    """Further fields of the file, or other values."""
    text: str | None = None
    """The content of the file instead of all these."""
    files: Mapping[str, str | Json] = field(default_factory=dict)
    kubeconfig: Sequence[str] | None = None
    """The list of files in the variable KUBECONFIG; None: the option --kubeconfig names the file
    ``config``."""
    env: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""
    """The reason why only one of the bridge and kubectl gets an answer, or another one."""

    def write(self, folder: Path, words: Mapping[str, str]) -> dict[str, str]:
        """Writes all files; returns the variables of the environment."""
        words = {**words, "folder": str(folder)}
        own: Json | str = self.text if self.text is not None else self._config()
        for name, content in {"config": own, **self.files}.items():
            text = content if isinstance(content, str) else yaml.safe_dump(content)
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(text).safe_substitute(words))
            path.chmod(0o700)
        env = {key: Template(value).safe_substitute(words) for key, value in self.env.items()}
        if self.kubeconfig is not None:
            paths = [str(folder / name) if name else "" for name in self.kubeconfig]
            env["KUBECONFIG"] = ":".join(paths)
        return env

    def _config(self) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": self.cluster}],
            "users": [{"name": "u", "user": self.user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"} | self.context}],
            "current-context": "x",
            **self.config,
        }


# -- parts of kubeconfigs -------------------------------------------------------------------------


def _credential(version: str = "v1", **status: Any) -> str:
    """An ExecCredential as an exec plugin writes it."""
    credential = {"apiVersion": f"client.authentication.k8s.io/{version}", "kind": "ExecCredential"}
    return json.dumps(credential | {"status": status})


def _exec(output: str, version: str = "v1", **fields: Any) -> Json:
    """A user with an exec plugin that writes the output."""
    plugin = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": "sh",
        "args": ["-c", 'printf %s "$$OUTPUT"'],
        "env": [{"name": "OUTPUT", "value": output}],
        "interactiveMode": "Never",
    }
    return {"exec": {key: value for key, value in (plugin | fields).items() if value is not None}}


_PLUGIN_TOKEN = _exec(_credential(token="$bob"))
_PLUGIN_PAIR = _credential(clientCertificateData="CERT", clientKeyData="KEY")
_PLUGIN_PAIR = _PLUGIN_PAIR.replace('"CERT"', "$dave_cert_json").replace('"KEY"', "$dave_key_json")
_PLUGIN_BOTH = _PLUGIN_PAIR.replace('"status": {', '"status": {"token": "$bob", ')
#: A plugin program in the folder of the kubeconfig.
_PROGRAM = f"#!/bin/sh\nprintf %s '{_credential(token='$bob')}'\n"
#: A plugin program that returns the token in the extension of its cluster.
_CLUSTER_PROGRAM = rf"""#!/bin/sh
token=$$(echo "$$KUBERNETES_EXEC_INFO" | sed 's/.*"plugin-token": *"\([^"]*\)".*/\1/')
printf '{_credential(token="%s")}' "$$token"
"""


def _oidc(**fields: Any) -> Json:
    settings = {
        "idp-issuer-url": "$issuer",
        "idp-certificate-authority-data": "$issuer_ca",
        "client-id": "$client_id",
        "id-token": "$erin",
    }
    settings = {key: value for key, value in (settings | fields).items() if value is not None}
    return {"auth-provider": {"name": "oidc", "config": settings}}


def _entries(kind: str, **entries: Any) -> list[Json]:
    """The list of entries of a kind in a kubeconfig."""
    return [{"name": name, kind: fields} for name, fields in entries.items()]


def _file(**fields: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Config", **fields}


_C = {"clusters": _entries("cluster", c=_CLUSTER)}
_U = {"users": _entries("user", u=_ALICE)}
_X = {"contexts": _entries("context", x={"cluster": "c", "user": "u"})}
_BOB_CONTEXT = {
    "clusters": _entries("cluster", c2=_CLUSTER),
    "users": _entries("user", u2={"token": "$bob"}),
    "contexts": _entries("context", x2={"cluster": "c2", "user": "u2"}),
    "current-context": "x2",
}

#: The reason why the bridge rejects some texts.
_HEADER = "HTTP/1.1 does not preserve these characters in a header."

# -- the table ------------------------------------------------------------------------------------

_AUTHENTICATION = [
    Case("certificate inline", "carol", _CAROL),
    Case(
        "certificate file",
        "carol",
        {"client-certificate": "$folder/carol.crt", "client-key": "$folder/carol.key"},
        files=_CAROL_FILES,
    ),
    Case(
        "certificate inline, key file",
        "carol",
        {"client-certificate-data": "$carol_cert", "client-key": "$folder/carol.key"},
        files=_CAROL_FILES,
    ),
    Case("token", "alice"),
    Case("token unknown", "", {"token": "unknown"}),
    Case("tokenFile", "alice", {"tokenFile": "$folder/token"}, files={"token": "$alice"}),
    Case("tokenFile newline", "alice", {"tokenFile": "$folder/t"}, files={"t": "$alice\n"}),
    Case("tokenFile spaces", "alice", {"tokenFile": "$folder/t"}, files={"t": " $alice \n\n"}),
    Case("tokenFile empty", "", {"tokenFile": "$folder/t"}, files={"t": ""}),
    Case("tokenFile missing", "", {"tokenFile": "$folder/missing"}),
    Case("tokenFile folder", "", {"tokenFile": "$folder"}),
    Case("basic", "", {"username": "alice", "password": "x"}),
    Case("basic without password", "", {"username": "alice"}),
    Case("basic without username", "", {"password": "x"}),
    Case("exec token", "bob", _PLUGIN_TOKEN),
    Case("exec v1beta1", "bob", _exec(_credential("v1beta1", token="$bob"), "v1beta1")),
    Case("exec certificate", "dave", _exec(_PLUGIN_PAIR)),
    Case("exec both", "dave", _exec(_PLUGIN_BOTH)),
    Case(
        "exec cluster",
        "bob",
        _exec("", args=["-c", "$folder/plugin"], provideClusterInfo=True),
        _CLUSTER
        | {
            "extensions": [
                {"name": "client.authentication.k8s.io/exec", "extension": {"plugin-token": "$bob"}}
            ]
        },
        files={"plugin": _CLUSTER_PROGRAM},
    ),
    Case("oidc", "erin", _oidc()),
    Case(
        "oidc CA file",
        "erin",
        _oidc(
            **{
                "id-token": "$expired_erin",
                "refresh-token": "refresh-erin",
                "idp-certificate-authority": "$folder/issuer.crt",
                "idp-certificate-authority-data": None,
            }
        ),
        files={"issuer.crt": "$issuer_ca_pem"},
    ),
    Case("oidc without tokens", "", _oidc(**{"id-token": None})),
    Case("auth-provider unknown", "", {"auth-provider": {"name": "gcp", "config": {}}}),
    Case("ServiceAccount", "system:serviceaccount:default:default", {"token": "$account"}),
    Case(
        "ServiceAccount file",
        "system:serviceaccount:default:default",
        {"tokenFile": "$folder/token"},
        files={"token": "$account\n"},
    ),
    Case(
        "ServiceAccount exec",
        "system:serviceaccount:default:default",
        _exec(_credential(token="$account")),
    ),
    Case("user empty", "", {}),
    Case("user null", "", None),
    Case("context without user", "", context={"user": ""}),
]

_PRECEDENCE = [
    Case(
        "token, tokenFile",
        "bob",
        _ALICE | {"tokenFile": "$folder/token"},
        files={"token": "$bob"},
    ),
    Case("token, tokenFile missing", "alice", _ALICE | {"tokenFile": "$folder/missing"}),
    Case("token, tokenFile empty", "alice", _ALICE | {"tokenFile": "$folder/t"}, files={"t": ""}),
    Case(
        "token empty, tokenFile",
        "bob",
        {"token": "", "tokenFile": "$folder/token"},
        files={"token": "$bob"},
    ),
    Case("token empty", "", {"token": ""}),
    Case("token null", "", {"token": None}),
    Case("token, exec", "alice", _ALICE | _PLUGIN_TOKEN),
    Case("token empty, exec", "bob", {"token": ""} | _PLUGIN_TOKEN),
    Case(
        "tokenFile, exec",
        "alice",
        {"tokenFile": "$folder/t"} | _PLUGIN_TOKEN,
        files={"t": "$alice"},
    ),
    Case("tokenFile empty, exec", "", {"tokenFile": "$folder/t"} | _PLUGIN_TOKEN, files={"t": ""}),
    Case("token unknown, exec", "", {"token": "unknown"} | _PLUGIN_TOKEN),
    Case("basic, exec", "", {"username": "alice", "password": "x"} | _PLUGIN_TOKEN),
    Case("username, exec", "", {"username": "alice"} | _PLUGIN_TOKEN),
    Case("password, exec", "bob", {"password": "x"} | _PLUGIN_TOKEN),
    Case("basic empty, exec", "bob", {"username": "", "password": ""} | _PLUGIN_TOKEN),
    Case("token, basic", "", _ALICE | {"username": "alice", "password": "x"}),
    Case("token, username", "", _ALICE | {"username": "alice"}),
    Case(
        "tokenFile, basic",
        "",
        {"tokenFile": "$folder/t", "username": "alice", "password": "x"},
        files={"t": "$alice"},
    ),
    Case("certificate, exec token", "carol", _CAROL | _PLUGIN_TOKEN),
    Case("certificate, exec certificate", "carol", _CAROL | _exec(_PLUGIN_PAIR)),
    Case("certificate, exec that fails", "carol", _CAROL | _exec("", command="false")),
    Case("certificate, token", "carol", _CAROL | _ALICE),
    Case("certificate, basic", "carol", _CAROL | {"username": "alice", "password": "x"}),
    Case("token, exec certificate", "alice", _ALICE | _exec(_PLUGIN_PAIR)),
    Case("oidc, exec", "", _oidc() | _PLUGIN_TOKEN),
    Case("oidc, token", "alice", _oidc() | _ALICE),
    Case("oidc, certificate", "carol", _oidc() | _CAROL),
    Case("oidc, basic", "", _oidc() | {"username": "alice", "password": "x"}),
    Case(
        "certificate data, file",
        "",
        _CAROL | {"client-certificate": "$folder/dave.crt", "client-key": "$folder/dave.key"},
        files=_DAVE_FILES,
    ),
    Case(
        "certificate data, file missing",
        "",
        _CAROL | {"client-certificate": "$folder/missing", "client-key": "$folder/missing"},
    ),
    Case(
        "certificate data empty, file",
        "dave",
        {
            "client-certificate-data": "",
            "client-key-data": "",
            "client-certificate": "$folder/dave.crt",
            "client-key": "$folder/dave.key",
        },
        files=_DAVE_FILES,
    ),
    Case(
        "CA data, file",
        "",
        cluster=_CLUSTER | {"certificate-authority": "$folder/other.crt"},
        files={"other.crt": "$carol_cert_pem"},
    ),
    Case(
        "CA data, file missing",
        "",
        cluster=_CLUSTER | {"certificate-authority": "$folder/missing"},
    ),
]

_FILES = [
    Case(
        "first current-context",
        "bob",
        files={"first": _file(**_BOB_CONTEXT)},
        kubeconfig=["first", "config"],
    ),
    Case(
        "last current-context",
        "alice",
        files={"first": _file(**(_BOB_CONTEXT | {"current-context": ""}))},
        kubeconfig=["first", "config"],
    ),
    Case(
        "parts in three files",
        "alice",
        files={"a": _file(**_U), "b": _file(**_C), "d": _file(**_X, **{"current-context": "x"})},
        kubeconfig=["a", "b", "d"],
    ),
    Case(
        "current-context of another file",
        "alice",
        files={"first": _file(**{"current-context": "x"})},
        kubeconfig=["first", "config"],
    ),
    Case(
        "user in two files",
        "bob",
        files={"first": _file(users=_entries("user", u={"token": "$bob"}))},
        kubeconfig=["first", "config"],
    ),
    Case(
        "user in two files, other fields",
        "",
        files={"first": _file(users=_entries("user", u={"as": ""}))},
        kubeconfig=["first", "config"],
    ),
    Case(
        "user in two files, empty first",
        "",
        files={"first": _file(users=_entries("user", u={}))},
        kubeconfig=["first", "config"],
    ),
    Case(
        "user in two files, impersonation first",
        "",
        _ADMIN,
        files={"first": _file(users=_entries("user", u={"as": "bob"}))},
        kubeconfig=["first", "config"],
    ),
    Case(
        "cluster in two files",
        "",
        files={"first": _file(clusters=_entries("cluster", c={"server": f"https://{CLOSED}"}))},
        kubeconfig=["first", "config"],
    ),
    Case(
        "cluster in two files, CA first",
        "",
        cluster=_ADDRESS,
        files={"first": _file(clusters=_entries("cluster", c=_CA))},
        kubeconfig=["first", "config"],
    ),
    Case(
        "context in two files",
        "alice",
        context={"user": "u2"},
        files={
            "first": _file(
                users=_entries("user", u=_ALICE),
                contexts=_entries("context", x={"cluster": "c", "user": "u"}),
            )
        },
        kubeconfig=["first", "config"],
    ),
    Case(
        "context in two files, user first",
        "",
        files={
            "first": _file(
                users=_entries("user", u2={"token": "$bob"}),
                contexts=_entries("context", x={"user": "u2"}),
            )
        },
        kubeconfig=["first", "config"],
    ),
    Case("missing file", "alice", kubeconfig=["missing", "config"]),
    Case("all files missing", "", kubeconfig=["missing", "absent"]),
    Case("no file", "", kubeconfig=[""]),
    Case("empty first file", "alice", files={"first": ""}, kubeconfig=["first", "config"]),
    Case("empty file", "", text=""),
    Case("null file", "", text="null\n"),
    Case("comment first", "alice", files={"first": "# none\n"}, kubeconfig=["first", "config"]),
    Case("empty names in list", "alice", kubeconfig=["", "config", ""]),
    Case("file twice", "alice", kubeconfig=["config", "config"]),
    Case("malformed first", "", files={"first": "a: ["}, kubeconfig=["first", "config"]),
    Case("malformed last", "", files={"last": "a: ["}, kubeconfig=["config", "last"]),
    Case(
        "wrong kind last",
        "",
        files={"last": {"apiVersion": "v1", "kind": "Pod"}},
        kubeconfig=["config", "last"],
    ),
    Case("folder in list", "", files={"sub/file": ""}, kubeconfig=["config", "sub"]),
]

_PATHS = [
    Case(
        "CA", "alice", cluster=_ADDRESS | {"certificate-authority": "ca"}, files={"ca": "$ca_pem"}
    ),
    Case(
        "CA above",
        "alice",
        text="",
        files={
            "sub/config": _file(
                clusters=_entries("cluster", c=_ADDRESS | {"certificate-authority": "../ca"}),
                **_U,
                **_X,
                **{"current-context": "x"},
            ),
            "ca": "$ca_pem",
        },
        kubeconfig=["sub/config"],
    ),
    Case(
        "certificate",
        "carol",
        {"client-certificate": "carol.crt", "client-key": "./carol.key"},
        files=_CAROL_FILES,
    ),
    Case("token file", "alice", {"tokenFile": "sub/token"}, files={"sub/token": "$alice"}),
    Case(
        "token file of the second file",
        "alice",
        text=yaml.safe_dump(_file(**_C, **_X, **{"current-context": "x"})),
        files={"sub/users": _file(users=_entries("user", u={"tokenFile": "t"})), "sub/t": "$alice"},
        kubeconfig=["config", "sub/users"],
    ),
    Case("plugin", "bob", _exec("", command="./plugin", args=None), files={"plugin": _PROGRAM}),
    Case(
        "plugin in folder",
        "bob",
        _exec("", command="sub/plugin", args=None),
        files={"sub/plugin": _PROGRAM},
    ),
    Case("plugin without folder", "", _exec("", command="plugin"), files={"plugin": _PROGRAM}),
    Case(
        "plugin in PATH",
        "bob",
        _exec("", command="plugin", args=None),
        files={"sub/plugin": _PROGRAM},
        env={"PATH": "$folder/sub:/usr/bin:/bin"},
    ),
    Case(
        "home folder",
        "",
        {"tokenFile": "~/token"},
        files={"token": "$alice"},
        env={"HOME": "$folder"},
    ),
    Case("file URL", "", cluster=_ADDRESS | {"certificate-authority": "file:ca"}),
    Case(
        "default file",
        "alice",
        files={
            ".kube/config": _file(**_C, **_U, **_X, **{"current-context": "x"}),
        },
        kubeconfig=[],
        env={"HOME": "$folder"},
    ),
]

_PROXY = {"server": "https://$name:$port", "proxy-url": "http://$proxy_credential@$proxy"}
#: The CA of the cluster verifies the proxy, too.
_HTTPS_PROXY = _PROXY | {"proxy-url": "https://$proxy_credential@$https_proxy"}
_PROXIES = [
    Case("proxy", "alice", cluster=_CA | _PROXY),
    Case("proxy, certificate", "carol", _CAROL, _CA | _PROXY),
    Case("proxy to an address", "alice", cluster=_CLUSTER | _PROXY | _ADDRESS),
    Case("without proxy", "", cluster=_CA | {"server": "https://$name:$port"}),
    Case("proxy without password", "", cluster=_CA | _PROXY | {"proxy-url": "http://$proxy"}),
    Case("proxy password wrong", "", cluster=_CA | _PROXY | {"proxy-url": "http://a:b@$proxy"}),
    Case("proxy down", "", cluster=_CLUSTER | {"proxy-url": f"http://{CLOSED}"}),
    Case("proxy empty", "alice", cluster=_CLUSTER | {"proxy-url": ""}),
    Case("proxy without scheme", "", cluster=_CLUSTER | {"proxy-url": "$proxy"}),
    Case("proxy without scheme, name", "", cluster=_CLUSTER | {"proxy-url": "localhost:1"}),
    Case("proxy ftp", "", cluster=_CLUSTER | {"proxy-url": "ftp://$proxy"}),
    Case("proxy not a URL", "", cluster=_CLUSTER | {"proxy-url": "http://[::1"}),
    Case("proxy port wrong", "", cluster=_CLUSTER | {"proxy-url": "http://localhost:x"}),
    Case("proxy only scheme", "", cluster=_CLUSTER | {"proxy-url": "http://"}),
    Case(
        "proxy https",
        "alice",
        cluster=_HTTPS_PROXY | {"certificate-authority": "ca"},
        files={"ca": "$ca_pem$issuer_ca_pem"},
    ),
    Case("proxy https, CA of another", "", cluster=_CA | _HTTPS_PROXY),
    Case(
        "proxy socks5",
        "alice",
        cluster=_CA | _PROXY | {"proxy-url": "socks5://$proxy"},
        differs="kubectl does not use a SOCKS proxy for exec and port-forward.",
    ),
    Case(
        "proxy of the environment",
        "alice",
        cluster=_CA | {"server": "https://$name:$port"},
        env={"HTTPS_PROXY": "http://$proxy_credential@$proxy"},
    ),
    Case(
        "proxy of the environment down",
        "",
        env={"HTTPS_PROXY": f"http://{CLOSED}"},
    ),
    Case(
        "NO_PROXY",
        "alice",
        env={"HTTPS_PROXY": f"http://{CLOSED}", "NO_PROXY": "$host"},
    ),
    Case(
        "proxy of both",
        "alice",
        cluster=_CA | _PROXY,
        env={"HTTPS_PROXY": f"http://{CLOSED}"},
    ),
]

_INSECURE = {"insecure-skip-tls-verify": True}
_UNKNOWN_NAME = _PROXY | {"server": "https://unknown.example:$port"}
_TLS = [
    Case("name right", "alice", cluster=_CLUSTER | {"tls-server-name": "$name"}),
    Case("name wrong", "", cluster=_CLUSTER | {"tls-server-name": "unknown.example"}),
    Case("name empty", "alice", cluster=_CLUSTER | {"tls-server-name": ""}),
    Case("name absent, host wrong", "", cluster=_CA | _UNKNOWN_NAME),
    Case(
        "name right, host wrong",
        "alice",
        cluster=_CA | _UNKNOWN_NAME | {"tls-server-name": "$name"},
    ),
    Case("insecure", "alice", cluster=_ADDRESS | _INSECURE),
    Case("insecure, certificate", "carol", _CAROL, _ADDRESS | _INSECURE),
    Case("insecure, name wrong", "alice", cluster=_UNKNOWN_NAME | _INSECURE),
    Case(
        "insecure, tls-server-name wrong",
        "alice",
        cluster=_ADDRESS | _INSECURE | {"tls-server-name": "unknown.example"},
    ),
    Case("insecure, CA", "", cluster=_CLUSTER | _INSECURE),
    Case(
        "insecure, CA file",
        "",
        cluster=_ADDRESS | _INSECURE | {"certificate-authority": "ca"},
        files={"ca": "$ca_pem"},
    ),
    Case(
        "insecure, CA empty", "alice", cluster=_ADDRESS | _INSECURE | {"certificate-authority": ""}
    ),
    Case("insecure false", "alice", cluster=_CLUSTER | {"insecure-skip-tls-verify": False}),
    Case("no CA", "", cluster=_ADDRESS),
    Case("CA of another", "", cluster=_ADDRESS | {"certificate-authority-data": "$other_ca"}),
    Case("CA of the system", "", cluster=_ADDRESS, env={"SSL_CERT_FILE": "/dev/null"}),
    Case(
        "CA of SSL_CERT_FILE",
        "alice",
        cluster=_ADDRESS,
        files={"ca": "$ca_pem"},
        env={"SSL_CERT_FILE": "$folder/ca"},
    ),
    Case(
        "CA bundle",
        "alice",
        cluster=_ADDRESS | {"certificate-authority": "ca"},
        files={"ca": "# Comment: ä\n$carol_cert_pem$ca_pem"},
    ),
    Case("server without scheme", "", cluster=_CA | {"server": "$address"}),
    Case("server with slash", "alice", cluster=_CA | {"server": "$server/"}),
    Case("server upper case", "alice", cluster=_CA | {"server": "HTTPS://$address"}),
    Case("server http", "", cluster=_CA | {"server": "http://$address"}),
    Case("server with password", "", cluster=_CA | {"server": "https://a:b@$address"}),
    Case("server with path", "", cluster=_CA | {"server": "$server/path"}),
    Case("server with query", "alice", cluster=_CA | {"server": "$server/?a=b"}),
    Case("disable-compression", "alice", cluster=_CLUSTER | {"disable-compression": True}),
]

_IMPERSONATION = [
    Case("as", "zoe", _ADMIN | {"as": "zoe"}),
    Case("as-groups", "zoe", _ADMIN | {"as": "zoe", "as-groups": ["a", "b"]}),
    Case("as-uid", "zoe", _ADMIN | {"as": "zoe", "as-uid": "uid-zoe"}),
    Case(
        "as-user-extra",
        "zoe",
        _ADMIN | {"as": "zoe", "as-user-extra": {"scopes": ["a", "b"], "example.com/Key%": ["c"]}},
    ),
    Case(
        "as everything",
        "zoe",
        _ADMIN
        | {"as": "zoe", "as-uid": "1", "as-groups": ["a"], "as-user-extra": {"scopes": ["a"]}},
    ),
    Case("as account", "system:serviceaccount:a:b", _ADMIN | {"as": "system:serviceaccount:a:b"}),
    Case("as without permission", "", _ALICE | {"as": "zoe"}),
    Case("as with exec", "", _PLUGIN_TOKEN | {"as": "zoe"}),
    Case("as with certificate", "", _CAROL | {"as": "zoe"}),
    Case("as empty", "admin", _ADMIN | {"as": ""}),
    Case("as anonymous", "", _ADMIN | {"as": "system:anonymous"}),
    Case("as-groups without as", "", _ADMIN | {"as-groups": ["a"]}),
    Case("as-uid without as", "", _ADMIN | {"as-uid": "1"}),
    Case("as-user-extra without as", "", _ADMIN | {"as-user-extra": {"scopes": ["a"]}}),
    Case("as-groups empty without as", "admin", _ADMIN | {"as-groups": []}),
    Case("as-groups empty name", "zoe", _ADMIN | {"as": "zoe", "as-groups": [""]}),
    Case("as-user-extra empty", "zoe", _ADMIN | {"as": "zoe", "as-user-extra": {"scopes": []}}),
    Case(
        "as umlaut",
        "zoë",
        _ADMIN | {"as": "zoë"},
        differs=_HEADER,
    ),
    Case("as newline", "", _ADMIN | {"as": "zoe\nbob"}),
    Case("as spaces", " zoe ", _ADMIN | {"as": " zoe "}, differs=_HEADER),
]

_PAST, _FUTURE = "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
_EXPIRY = [
    Case(
        "certificate expired",
        "",
        {"client-certificate-data": "$expired_cert", "client-key-data": "$expired_key"},
    ),
    Case("ServiceAccount expired", "", {"token": "$expired_account"}),
    Case("ServiceAccount file expired", "", {"tokenFile": "t"}, files={"t": "$expired_account"}),
    Case("oidc expired", "", _oidc(**{"id-token": "$expired_erin"})),
    Case(
        "oidc refreshed",
        "erin",
        _oidc(**{"id-token": "$expired_erin", "refresh-token": "refresh-erin"}),
    ),
    Case(
        "oidc refresh rejected",
        "",
        _oidc(**{"id-token": "$expired_erin", "refresh-token": "unknown"}),
    ),
    Case("exec expired", "bob", _exec(_credential(token="$bob", expirationTimestamp=_PAST))),
    Case("exec unexpired", "bob", _exec(_credential(token="$bob", expirationTimestamp=_FUTURE))),
    Case("exec expired token", "", _exec(_credential(token="$expired_account"))),
    Case("exec expired oidc", "", _exec(_credential(token="$expired_erin"))),
    Case("exec expiry malformed", "", _exec(_credential(token="$bob", expirationTimestamp="soon"))),
    Case("exec expiry number", "", _exec(_credential(token="$bob", expirationTimestamp=1))),
]

#: A wrong value of each type.
_TEXT, _NUMBER, _LIST, _MAP = "text", 1, ["a"], {"a": "b"}
_WRONG_IN_USER: Mapping[str, Sequence[Any]] = {
    "token": (_NUMBER, True, _LIST, _MAP),
    "tokenFile": (_NUMBER, _LIST),
    "username": (_NUMBER, _LIST),
    "password": (_NUMBER, _LIST),
    "client-certificate": (_NUMBER, _LIST),
    "client-certificate-data": (_NUMBER, _LIST),
    "client-key": (_NUMBER, _LIST),
    "client-key-data": (_NUMBER, _MAP),
    "as": (_NUMBER, True, _LIST),
    "as-uid": (_NUMBER, _LIST),
    "as-groups": (_TEXT, _MAP, [_NUMBER]),
    "as-user-extra": (_TEXT, _LIST, {"a": "b"}, {"a": [_NUMBER]}),
    "exec": (_TEXT, _LIST),
    "auth-provider": (_TEXT, _LIST),
    "extensions": (_TEXT, _MAP, [_TEXT]),
}
_WRONG_IN_CLUSTER: Mapping[str, Sequence[Any]] = {
    "server": (_NUMBER, _LIST),
    "tls-server-name": (_NUMBER, _LIST),
    "insecure-skip-tls-verify": ("false", _NUMBER, _LIST),
    "certificate-authority": (_NUMBER, _LIST),
    "certificate-authority-data": (_NUMBER, _LIST),
    "proxy-url": (_NUMBER, _LIST),
    "disable-compression": ("false", _NUMBER),
    "extensions": (_TEXT, _MAP, [_TEXT]),
}
_WRONG_IN_CONTEXT: Mapping[str, Sequence[Any]] = {
    "cluster": (_NUMBER, _LIST),
    "user": (_NUMBER, _LIST),
    "namespace": (_NUMBER, _LIST),
    "extensions": (_TEXT,),
}
_WRONG_IN_CONFIG: Mapping[str, Sequence[Any]] = {
    "apiVersion": ("v2", _NUMBER),
    "kind": ("Pod", _NUMBER),
    "current-context": (_NUMBER, _LIST),
    "clusters": (_TEXT, _MAP, [_TEXT]),
    "users": (_TEXT, _MAP, [_TEXT]),
    "contexts": (_TEXT, _MAP, [_TEXT]),
    "preferences": (_TEXT,),
    "extensions": (_TEXT,),
}
_WRONG_IN_EXEC: Mapping[str, Sequence[Any]] = {
    "apiVersion": (None, _NUMBER, _LIST, "client.authentication.k8s.io/v1alpha1", "v1"),
    "command": (None, "", _NUMBER, _LIST),
    "args": (_TEXT, [_NUMBER], _MAP),
    "env": (_TEXT, _MAP, [_TEXT], [{"name": "A", "value": _NUMBER}], [{"name": "", "value": "a"}]),
    "interactiveMode": (None, "Sometimes", _NUMBER, "Always"),
    "provideClusterInfo": ("true", _NUMBER),
    "installHint": (_NUMBER,),
}
_WRONG_TYPES = [
    *(
        Case(f"user {name} {value!r}", "", _ADMIN | {"as": "zoe"} | {name: value})
        for name, values in _WRONG_IN_USER.items()
        for value in values
    ),
    *(
        Case(f"cluster {name} {value!r}", "", cluster=_CLUSTER | {name: value})
        for name, values in _WRONG_IN_CLUSTER.items()
        for value in values
    ),
    *(
        Case(f"context {name} {value!r}", "", context={name: value})
        for name, values in _WRONG_IN_CONTEXT.items()
        for value in values
    ),
    *(
        Case(f"config {name} {value!r}", "", config={name: value})
        for name, values in _WRONG_IN_CONFIG.items()
        for value in values
    ),
    *(
        Case(f"exec {name} {value!r}", "", _exec(_credential(token="$bob"), **{name: value}))
        for name, values in _WRONG_IN_EXEC.items()
        for value in values
    ),
    Case("token number of a user", "", {"token": 12345}),
    Case("token boolean of a user", "", {"token": True}),
]

_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: $server, certificate-authority-data: $ca}}]
users: [{name: u, user: USER}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def _text(user: str) -> str:
    return _KUBECONFIG.replace("USER", user)


def _named(name: str) -> str:
    """A kubeconfig whose context has this name."""
    text = _text("{token: $alice}")
    return text.replace("name: x", f"name: {name}").replace(": x\n", f": {name}\n")


_CONTENT = [
    Case("JSON", "alice", text=json.dumps(_file(**_C, **_U, **_X, **{"current-context": "x"}))),
    Case("anchors", "alice", text=f"a: &a {{token: $alice}}\n{_text('{<<: *a}')}"),
    Case("CRLF", "alice", text=_text("{token: $alice}").replace("\n", "\r\n")),
    Case("BOM", "alice", text="\ufeff" + _text("{token: $alice}")),
    Case("documents", "alice", text=_text("{token: $alice}") + "---\na: b\n"),
    Case("document start", "alice", text="---\n" + _text("{token: $alice}")),
    Case("date as token", "date", text=_text("{token: 2024-01-01}")),
    Case("time as token", "time", text=_text("{token: 12:30:45}")),
    *(Case(f"{name} as name", "", text=_named(name)) for name in ("y", "yes", "1")),
    Case("name in quotes", "alice", text=_named("'y'")),
    Case("quoted number", "number", text=_text("{token: '12345'}")),
    Case("quoted boolean", "boolean", text=_text("{token: 'True'}")),
    Case(
        "own tag",
        "alice",
        text=_text("{token: !own $alice}"),
        differs="The YAML parser of the bridge supports standard tags only.",
    ),
    Case("upper-case field", "", text=_text("{Token: $alice}")),
    Case("field twice", "bob", text=_text("{token: $alice, token: $bob}")),
    Case("unknown fields", "alice", text=_text("{token: $alice, other: 1}") + "more: [1]\n"),
    Case("tabs", "", text=_text("{token: $alice}") + "preferences:\n\tcolors: true\n"),
    Case("malformed", "", text="apiVersion: v1\nkind: [Config\n"),
    Case("text", "", text="no kubeconfig\n"),
    Case("list", "", text="- a\n"),
    Case("token newline", "", _ALICE | {"token": "$alice\n"}),
    Case("token spaces", "alice", _ALICE | {"token": "$alice "}, differs=_HEADER),
    Case("token with a space inside", "alice", _ALICE | {"token": "$alice a"}),
    Case("token newline inside", "", _ALICE | {"token": "$alice\na"}),
    Case("token umlaut", "", _ALICE | {"token": "ä"}),
    Case("without apiVersion", "alice", config={"apiVersion": None}),
    Case("without kind", "alice", config={"kind": None}),
    Case("without both", "alice", config={"apiVersion": None, "kind": None}),
    Case("apiVersion empty", "alice", config={"apiVersion": ""}),
    Case("preferences", "alice", config={"preferences": {"colors": True}}),
    Case("users null", "", config={"users": None}),
    Case("contexts null", "", config={"contexts": None}),
]

_BROKEN = [
    Case("cluster missing", "", context={"cluster": "missing"}),
    Case("cluster empty", "", context={"cluster": ""}),
    Case("cluster null", "", cluster=None),
    Case("user missing", "", context={"user": "missing"}),
    Case("context missing", "", config={"current-context": "missing"}),
    Case("current-context empty", "", config={"current-context": ""}),
    Case("contexts empty", "", config={"contexts": []}),
    Case("context null", "", config={"contexts": [{"name": "x", "context": None}]}),
    Case("server missing", "", cluster=_CA),
    Case("server empty", "", cluster=_CA | {"server": ""}),
    Case("server not a URL", "", cluster=_CA | {"server": "https://[::1"}),
    Case("server spaces", "", cluster=_CA | {"server": " $server"}),
    Case("server ftp", "", cluster=_CA | {"server": "ftp://$address"}),
    Case("server port wrong", "", cluster=_CA | {"server": "https://localhost:x"}),
    Case("user twice", "", config={"users": [*_U["users"], *_U["users"]]}),
    Case("cluster twice", "", config={"clusters": [*_C["clusters"], *_C["clusters"]]}),
    Case("context twice", "", config={"contexts": [*_X["contexts"], *_X["contexts"]]}),
    Case(
        "unused user twice",
        "",
        config={"users": [*_U["users"], *_entries("user", v={}), *_entries("user", v={})]},
    ),
    Case("unused user broken", "", config={"users": [*_U["users"], {"name": "v", "user": "text"}]}),
    Case(
        "unused user wrong type",
        "",
        config={"users": [*_U["users"], *_entries("user", v={"token": 1})]},
    ),
    Case(
        "unused user base64",
        "",
        config={"users": [*_U["users"], *_entries("user", v={"client-key-data": "%"})]},
    ),
    Case(
        "unused user incomplete",
        "alice",
        config={"users": [*_U["users"], *_entries("user", v={"client-certificate-data": "YQ=="})]},
    ),
    Case("user without name", "", config={"users": [{"user": _ALICE}]}),
    Case("CA base64", "", cluster=_ADDRESS | {"certificate-authority-data": "%$ca"}),
    Case("CA base64 end", "", cluster=_ADDRESS | {"certificate-authority-data": "$ca=A"}),
    Case("CA base64 space", "", cluster=_ADDRESS | {"certificate-authority-data": " $ca"}),
    Case("CA base64 newline", "alice", cluster=_ADDRESS | {"certificate-authority-data": "$ca\n"}),
    Case("CA not PEM", "", cluster=_ADDRESS | {"certificate-authority-data": "YQ=="}),
    Case("CA data is PEM", "", cluster=_ADDRESS | {"certificate-authority-data": "-----BEGIN"}),
    Case("CA file missing", "", cluster=_ADDRESS | {"certificate-authority": "missing"}),
    Case("CA file empty", "", cluster=_ADDRESS | {"certificate-authority": "e"}, files={"e": ""}),
    Case(
        "CA file not PEM",
        "",
        cluster=_ADDRESS | {"certificate-authority": "f"},
        files={"f": "text"},
    ),
    Case("certificate base64", "", _CAROL | {"client-certificate-data": "%%%"}),
    Case("certificate base64 URL", "", _CAROL | {"client-certificate-data": "-_-_"}),
    Case("certificate base64, token", "", _CAROL | _ALICE | {"client-certificate-data": "%%%"}),
    Case("key base64", "", _CAROL | {"client-key-data": "%%%"}),
    Case("key base64 cut", "", _CAROL | {"client-key-data": "YWJ"}),
    Case("certificate not PEM", "", _CAROL | {"client-certificate-data": "YQ=="}),
    Case("key not PEM", "", _CAROL | {"client-key-data": "YQ=="}),
    Case("key of another", "", _CAROL | {"client-key-data": "$dave_key"}),
    Case("certificate without key", "", {"client-certificate-data": "$carol_cert"}),
    Case("key without certificate", "", {"client-key-data": "$carol_key"}),
    Case("certificate without key, token", "", _ALICE | {"client-certificate-data": "$carol_cert"}),
    Case("key without certificate, token", "alice", _ALICE | {"client-key-data": "$carol_key"}),
    Case(
        "certificate file missing",
        "",
        _CAROL | {"client-certificate-data": ""} | {"client-certificate": "m"},
    ),
    Case("key file missing", "", {"client-certificate-data": "$carol_cert", "client-key": "m"}),
    Case("exec fails", "", _exec("", command="false")),
    Case("exec not found", "", _exec("", command="missing-plugin")),
    Case("exec not executable", "", _exec("", command="/dev/null")),
    Case("exec no output", "", _exec("")),
    Case("exec text", "", _exec("text")),
    Case("exec list", "", _exec("[]")),
    Case("exec without status", "", _exec(_credential(token="$bob").replace("status", "other"))),
    Case("exec empty status", "", _exec(_credential())),
    Case("exec empty token", "", _exec(_credential(token=""))),
    Case("exec token number", "", _exec(_credential(token=12345))),
    Case("exec token newline", "", _exec(_credential(token="$bob\n"))),
    Case("exec other version", "", _exec(_credential("v1beta1", token="$bob"))),
    Case(
        "exec other kind", "", _exec(_credential(token="$bob").replace("ExecCredential", "Other"))
    ),
    Case("exec without kind", "", _exec('{"status": {"token": "$bob"}}')),
    Case(
        "exec YAML",
        "bob",
        _exec(yaml.safe_dump(json.loads(_credential(token="$bob")))),
        differs="Plugins write JSON, which the bridge reads without blocking.",
    ),
    Case("exec output twice", "", _exec(_credential(token="$bob") * 2)),
    Case("exec certificate only", "", _exec(_credential(clientCertificateData="x"))),
    Case("exec key only", "", _exec(_credential(clientKeyData="x"))),
    Case("exec token, key", "", _exec(_credential(token="$bob", clientKeyData="x"))),
    Case(
        "exec pair malformed", "", _exec(_credential(clientCertificateData="x", clientKeyData="y"))
    ),
    Case("exec null", "", {"exec": None}),
    Case("exec empty", "", {"exec": {}}),
    Case("exec empty, token", "", _ALICE | {"exec": {}}),
    Case("exec without command, token", "", _ALICE | _exec("", command=None)),
    Case("auth-provider without name", "", {"auth-provider": {"config": {}}}),
    Case("auth-provider unknown, token", "", _ALICE | {"auth-provider": {"name": "gcp"}}),
    Case("oidc without issuer", "", _oidc(**{"idp-issuer-url": None})),
    Case("oidc without client", "", _oidc(**{"client-id": None})),
    Case("oidc config wrong type", "", _oidc(**{"id-token": 1})),
]

#: The kubeconfigs by dimension.
CASES: Mapping[str, Sequence[Case]] = {
    "authentication": _AUTHENTICATION,
    "precedence": _PRECEDENCE,
    "files": _FILES,
    "paths": _PATHS,
    "proxies": _PROXIES,
    "TLS": _TLS,
    "impersonation": _IMPERSONATION,
    "expiry": _EXPIRY,
    "types": _WRONG_TYPES,
    "content": _CONTENT,
    "broken": _BROKEN,
}
