"""Kubeconfigs as client-go reads them: lists, paths, impersonation, plugins."""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sync.kube.api_errors import ClientConfigError
from sync.kube.credentials import Credentials, load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority
from tests.fakeapi.kubeconfig import credential, kubeconfig, plugin, write

SERVER = "https://127.0.0.1:6443"


async def read(path: Path, content: dict[str, Any]) -> Credentials:
    return await load(KubeconfigRef(write(path, content)), side="remote")


async def refused(path: Path, content: dict[str, Any]) -> str:
    with pytest.raises(ClientConfigError) as caught:
        await read(path, content)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config"


@pytest.mark.parametrize("text", ["", " \n", "# a comment\n", "---\n"])
@pytest.mark.parametrize("first", [True, False])
async def test_empty_file_in_a_list_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, first: bool
) -> None:
    empty = tmp_path / "empty"
    empty.write_text(text)
    full = write(tmp_path / "full", kubeconfig(SERVER, user={"token": "t"}))
    files = [empty, full] if first else [full, empty]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    access = await load(KubeconfigRef(), side="home")
    assert access.credential.authorization == "Bearer t"


async def test_list_of_empty_files_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_text("")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    with pytest.raises(ClientConfigError, match="empty"):
        await load(KubeconfigRef(), side="home")


@pytest.mark.parametrize(
    "content",
    [
        {"contexts": "text"},
        {"current-context": "a", "contexts": [{"name": "a", "context": "text"}]},
        {"current-context": "a", "contexts": ["text"]},
        {**kubeconfig(SERVER), "users": [{"name": "fake", "user": {"exec": "text"}}]},
        {**kubeconfig(SERVER), "users": [{"name": "fake", "user": {"auth-provider": ["x"]}}]},
    ],
)
async def test_malformed_kubeconfig_is_one_sentence(path: Path, content: dict[str, Any]) -> None:
    assert "see `kubectl config view`" in await refused(path, content)


async def test_empty_ca_does_not_select_the_system_cas(path: Path) -> None:
    (path.parent / "ca.crt").write_text("")
    cluster = {"certificate-authority": "ca.crt"}
    assert "not valid PEM" in await refused(path, kubeconfig(SERVER, cluster=cluster))


async def test_ca_with_non_ascii_comments_is_read(path: Path, authority: Authority) -> None:
    bundle = path.parent / "ca.crt"
    bundle.write_bytes("# Főtanúsítvány\n".encode() + authority.cert.read_bytes())
    access = await read(path, kubeconfig(SERVER, cluster={"certificate-authority": "ca.crt"}))
    assert access.tls is not None
    assert len(access.tls.get_ca_certs()) == 1


async def test_unsupported_auth_provider_names_the_replacement(path: Path) -> None:
    user = {"auth-provider": {"name": "gcp", "config": {"access-token": "canary"}}}
    message = await refused(path, kubeconfig(SERVER, user=user))
    assert "exec plugin" in message
    assert "canary" not in message


async def test_impersonation_becomes_the_headers_that_kubectl_sends(path: Path) -> None:
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "u-1",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"example.com/Scopes": ["a", "b"], "ünits": ["c"]},
    }
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.headers() == [
        ("Authorization", "Bearer t"),
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-example.com%2FScopes", "a"),
        ("Impersonate-Extra-example.com%2FScopes", "b"),
        ("Impersonate-Extra-%C3%BCnits", "c"),
    ]


@pytest.mark.parametrize(
    "user",
    [
        {"as-uid": "u"},
        {"as-groups": ["system:masters"]},
        {"as-user-extra": {"a": ["b"]}},
        {"as": "jane", "as-groups": "dev"},
        {"as": "jane", "as-user-extra": ["a"]},
        {"as": "jane", "as-user-extra": {"a": "b"}},
        {"as": "jane\r\nX-Other: 1"},
        {"as": "jane", "as-groups": ["dev\nops"]},
        {"as": " jane "},
        {"as": "jane", "as-user-extra": {"a": ["b", " c"]}},
    ],
)
async def test_incomplete_impersonation_is_rejected(path: Path, user: dict[str, Any]) -> None:
    """A partial impersonation would grant other permissions than requested."""
    assert "as" in await refused(path, kubeconfig(SERVER, user={"token": "t", **user}))


def exec_user(script: Path, **more: Any) -> dict[str, Any]:
    user = plugin(script, more.pop("response", credential({"token": "abc"})))
    user["exec"].update(more)
    return user


async def info(path: Path, cluster: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The ExecCredential that the plugin received."""
    given = path.with_name("given")
    response = f'printf %s "$KUBERNETES_EXEC_INFO" >{shlex.quote(str(given))}\n'
    response += credential({"token": "abc"})
    user = exec_user(path.with_name("plugin"), response=response, **more)
    await read(path, kubeconfig(SERVER, user=user, cluster=cluster))
    found: dict[str, Any] = json.loads(given.read_text())
    return found


async def test_plugin_with_provide_cluster_info_receives_the_cluster(
    path: Path, authority: Authority
) -> None:
    config = {"apiVersion": "example.com/v1", "audience": "a"}
    cluster = {
        "certificate-authority": str(authority.cert),
        "tls-server-name": "api.test",
        "proxy-url": "http://proxy.test:3128",
        "extensions": [
            {"name": "other", "extension": {}},
            {"name": "client.authentication.k8s.io/exec", "extension": config},
        ],
    }
    assert await info(path, cluster, provideClusterInfo=True) == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": SERVER,
                "tls-server-name": "api.test",
                "certificate-authority-data": base64.b64encode(
                    authority.cert.read_bytes()
                ).decode(),
                "proxy-url": "http://proxy.test:3128",
                "config": config,
            },
        },
    }


async def test_plugin_without_provide_cluster_info_receives_no_cluster(path: Path) -> None:
    given = await info(path, {"insecure-skip-tls-verify": True})
    assert given["spec"] == {"interactive": False}


async def test_command_with_a_separator_is_relative_to_the_kubeconfig(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / "bin").mkdir()
    monkeypatch.chdir("/")
    user = exec_user(path.parent / "bin" / "plugin", command="./bin/plugin")
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.authorization == "Bearer abc"


async def test_command_without_a_separator_is_looked_up_in_path(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = exec_user(path.with_name("some-plugin"), command="some-plugin")
    assert "cannot be started" in await refused(path, kubeconfig(SERVER, user=user))
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.authorization == "Bearer abc"


@pytest.mark.parametrize("order", ["before", "after"])
async def test_plugin_with_much_stderr_does_not_block(path: Path, order: str) -> None:
    much = "head -c 3000000 /dev/zero | tr '\\0' 'x' >&2\n"
    response = credential({"token": "abc"})
    user = exec_user(
        path.with_name("plugin"), response=much + response if order == "before" else response + much
    )
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.authorization == "Bearer abc"


async def test_plugin_with_endless_output_is_rejected(path: Path) -> None:
    response = "head -c 3000000 /dev/zero\n"
    user = exec_user(path.with_name("plugin"), response=response)
    assert "more than 1048576 bytes" in await refused(path, kubeconfig(SERVER, user=user))


async def test_plugin_returns_token_and_certificate(path: Path, authority: Authority) -> None:
    pair = authority.issue("someone")
    status = {
        "token": "abc",
        "clientCertificateData": pair.cert.read_text(),
        "clientKeyData": pair.key.read_text(),
    }
    user = exec_user(path.with_name("plugin"), response=credential(status))
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.authorization == "Bearer abc"
    assert access.credential.certificate == pair.cert.read_bytes().rstrip(b"\n") + b"\n"


async def test_token_of_the_kubeconfig_is_preferred_to_the_plugin(path: Path) -> None:
    user = {**exec_user(path.with_name("plugin"), response="exit 1\n"), "token": "own"}
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.authorization == "Bearer own"


async def test_plugin_with_another_api_version_is_rejected(path: Path) -> None:
    user = exec_user(path.with_name("plugin"), apiVersion="client.authentication.k8s.io/v1beta1")
    assert "apiVersion" in await refused(path, kubeconfig(SERVER, user=user))


async def test_interactive_plugin_is_rejected_without_a_terminal(path: Path) -> None:
    user = exec_user(path.with_name("plugin"), interactiveMode="Always")
    assert "needs a terminal" in await refused(path, kubeconfig(SERVER, user=user))


CERTIFICATE = {"client-certificate-data": "YQ==", "client-key-data": "YQ=="}
EXEC = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "no-such-plugin",
    "interactiveMode": "Never",
}
OIDC: dict[str, Any] = {
    "name": "oidc",
    "config": {"client-id": "c", "idp-issuer-url": "https://issuer.test"},
}


def user_fields() -> Iterator[tuple[str, Any]]:
    """Values of another type than client-go's, by field of a user."""
    for name in ("token", "tokenFile", "username", "password", "as", "as-uid"):
        yield from ((name, value) for value in (12345, True, 1.5, ["canary"], {"canary": "a"}))
    for name in ("client-certificate", "client-key"):
        yield from ((name, value) for value in (5, ["canary"]))
    for name in ("client-certificate-data", "client-key-data"):
        yield from ((name, value) for value in (5, ["canary"], "!", "YQ", "Y Q==", "YQ==YQ=="))
    yield from (("as-groups", value) for value in ("canary", {"a": "b"}, [5], [["a"]]))
    yield from (("as-user-extra", value) for value in ("a", ["a"], {"a": "b"}, {"a": [5]}))
    yield from (("exec", value) for value in ("canary", ["a"]))
    yield from (("exec.command", value) for value in (5, ["a"], True))
    yield from (("exec.args", value) for value in ("canary", {"a": "b"}, [5], [True]))
    yield from (("exec.env", value) for value in ("a", {"a": "b"}, ["A=b"], [{"name": 5}]))
    yield ("exec.env", [{"name": "A", "value": 5}])
    yield from (("exec.apiVersion", value) for value in (1, ["v1"]))
    yield from (("exec.installHint", value) for value in (1, ["a"]))
    yield from (("exec.provideClusterInfo", value) for value in ("true", 1))
    yield from (("exec.interactiveMode", value) for value in (False, 1))
    yield from (("auth-provider", value) for value in ("oidc", ["oidc"]))
    yield ("auth-provider.name", 5)
    yield from (("auth-provider.config", value) for value in ("a", ["a"], {"client-id": 5}))
    yield from (("extensions", value) for value in ("a", {"a": 1}, ["a"], [{"name": 5}]))


@pytest.mark.parametrize(("name", "value"), list(user_fields()))
@pytest.mark.parametrize("is_used", [True, False])
async def test_user_field_of_another_type_is_named(
    path: Path, name: str, value: Any, *, is_used: bool
) -> None:
    """kubectl decodes the whole file, so the user does not need to be of the current context."""
    parent, _, child = name.partition(".")
    complete = EXEC if parent == "exec" else OIDC
    wrong = {parent: {**complete, child: value} if child else value}
    content = kubeconfig(SERVER, user={"token": "t"})
    entry = content["users"][0] if is_used else {"name": "other"}
    entry["user"] = wrong
    content["users"] = [entry] if is_used else [*content["users"], entry]
    message = await refused(path, content)
    assert message.startswith(f"remote: kubeconfig {path}: users[{entry['name']}].user.{name}"), (
        message
    )
    assert " must be " in message
    assert "see `kubectl config view`" in message
    assert "canary" not in message


@pytest.mark.parametrize(
    ("at", "value"),
    [
        ("clusters[fake].cluster.server", 5),
        ("clusters[fake].cluster.tls-server-name", ["a"]),
        ("clusters[fake].cluster.insecure-skip-tls-verify", "true"),
        ("clusters[fake].cluster.insecure-skip-tls-verify", 1),
        ("clusters[fake].cluster.disable-compression", "yes"),
        ("clusters[fake].cluster.certificate-authority", 5),
        ("clusters[fake].cluster.certificate-authority-data", 5),
        ("clusters[fake].cluster.certificate-authority-data", "!"),
        ("clusters[fake].cluster.proxy-url", 5),
        ("clusters[fake].cluster.extensions", {"a": 1}),
        ("contexts[fake].context.cluster", 5),
        ("contexts[fake].context.user", ["fake"]),
        ("contexts[fake].context.namespace", 5),
        ("contexts[fake].context.extensions", "a"),
    ],
)
async def test_cluster_or_context_field_of_another_type_is_named(
    path: Path, at: str, value: Any
) -> None:
    content = kubeconfig(SERVER)
    section, kind, name = at.replace("[fake]", "").split(".")
    content[section][0][kind][name] = value
    assert f"{path}: {at} must be " in await refused(path, content)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"apiVersion": 1}, "apiVersion must be a string"),
        ({"apiVersion": "v1beta1"}, "apiVersion and kind"),
        ({"kind": "List"}, "apiVersion and kind"),
        ({"kind": "config"}, "apiVersion and kind"),
        ({"current-context": 5}, "current-context must be a string"),
        ({"current-context": None}, "no current-context is set"),
        ({"current-context": "other"}, "no context named 'other'"),
        ({"users": {"fake": {}}}, "users must be a list"),
        ({"clusters": ""}, "clusters must be a list"),
        ({"contexts": [5]}, "contexts[0] must be a map"),
        ({"contexts": [{"name": 5}]}, "contexts[0].name must be a string"),
        ({"users": [{"name": "a", "user": "text"}]}, "users[a].user must be a map"),
        ({"users": [{"name": "a"}, {"name": "a"}]}, "users[a] has the name of another entry"),
        ({"users": [{}, {}]}, "users[1] has the name of another entry"),
        ({"clusters": [{"name": "a"}] * 2}, "clusters[a] has the name of another entry"),
        ({"contexts": [{"name": "a"}] * 2}, "contexts[a] has the name of another entry"),
        ({"extensions": [{"name": "a"}] * 2}, "extensions[a] has the name of another entry"),
        ({"preferences": "a"}, "preferences must be a map"),
        ({"contexts": [{"name": "fake"}]}, "contexts[fake].context names no cluster"),
        (
            {"contexts": [{"name": "fake", "context": {"cluster": "fake"}}]},
            "contexts[fake].context.user has no credential",
        ),
    ],
)
async def test_wrong_file_is_rejected(path: Path, changes: dict[str, Any], problem: str) -> None:
    assert f"{path}: {problem}" in (await refused(path, kubeconfig(SERVER) | changes)).replace(
        "it has ", ""
    ).replace("its ", "")


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ({}, "has no credential"),
        ({"token": ""}, "has no credential"),
        ({"password": "p"}, "has no credential"),
        ({"client-key-data": "YQ=="}, "has no credential"),
        ({"client-certificate-data": "\n", "client-key-data": "YQ=="}, "has no credential"),
        ({"client-certificate-data": "YQ=="}, "has a client certificate without a client-key"),
        ({"client-certificate-data": "YQ==", "token": "t"}, "without a client-key"),
        ({**CERTIFICATE, "client-certificate": "a"}, "client-certificate and client-certificate-"),
        ({**CERTIFICATE, "client-key": "a"}, "both client-key and client-key-data"),
        ({"client-certificate": "absent", "client-key": "absent"}, "no such file"),
        ({"client-certificate": "empty", "client-key": "token"}, "an empty client certificate"),
        ({"tokenFile": "absent"}, "user.tokenFile: no such file"),
        ({"tokenFile": "."}, "cannot be read"),
        ({"tokenFile": "empty"}, "is empty"),
        ({"token": "t\n"}, "user.token has white space"),
        ({"token": " "}, "user.token has white space"),
        ({"token": "a\nb"}, "cannot be sent"),
        ({"token": "t", "username": "u", "password": "p"}, "both token and username"),
        ({"token": "t", "password": "p"}, "both password and token"),
        ({"tokenFile": "token", "username": "u"}, "both tokenFile and username"),
        ({"exec": EXEC, "auth-provider": OIDC, "token": "t"}, "both auth-provider and exec"),
        ({"exec": {}, "token": "t"}, "user.exec has no command"),
        ({"exec": EXEC | {"command": ""}}, "user.exec has no command"),
        ({"exec": EXEC | {"apiVersion": ""}, "token": "t"}, "user.exec must have the apiVersion"),
        ({"exec": EXEC | {"apiVersion": "v1"}, **CERTIFICATE}, "must have the apiVersion"),
        (
            {"exec": EXEC | {"apiVersion": "client.authentication.k8s.io/v1alpha1"}},
            "must have the apiVersion",
        ),
        ({"exec": EXEC | {"interactiveMode": None}}, "must have the interactiveMode"),
        ({"exec": EXEC | {"interactiveMode": "never"}}, "must have the interactiveMode"),
        ({"exec": EXEC | {"env": [{"value": "a"}]}}, "env variable without a name"),
        ({"exec": EXEC | {"env": [None]}}, "env variable without a name"),
        ({"auth-provider": {}, "token": "t"}, "auth-provider '' is not supported"),
        ({"auth-provider": {"name": "gcp"}, "token": "t"}, "'gcp' is not supported"),
        ({"auth-provider": {"name": "oidc"}, "token": "t"}, "client-id is missing"),
        (
            {
                "auth-provider": {
                    "name": "oidc",
                    "config": OIDC["config"] | {"idp-certificate-authority-data": "YQ==!"},
                }
            },
            "idp-certificate-authority",
        ),
    ],
)
async def test_user_that_kubectl_rejects_is_rejected(
    path: Path, user: dict[str, Any], problem: str
) -> None:
    path.with_name("empty").write_text("")
    path.with_name("token").write_text("t\n")
    assert problem in await refused(path, kubeconfig(SERVER, user=user))


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ({"server": ""}, "clusters[fake].cluster has no server"),
        ({"server": "https://me:canary@a.test"}, "without a user"),
        ({"server": " https://a.test"}, "not an http(s) URL"),
        ({"server": "ht\ntp://a.test"}, "not an http(s) URL"),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "token"}, "has both"),
        ({"insecure-skip-tls-verify": True, "certificate-authority-data": "YQ=="}, "has both"),
        ({"certificate-authority": "token", "certificate-authority-data": "YQ=="}, "has both"),
        ({"certificate-authority": "absent"}, "certificate-authority: no such file"),
        ({"proxy-url": "proxy.test:3128"}, "proxy"),
        ({"proxy-url": "ftp://proxy.test"}, "proxy"),
        ({"proxy-url": "http://a b"}, "proxy"),
        ({"proxy-url": "http://[::1"}, "proxy"),
        ({"proxy-url": "http://empty..label"}, "proxy"),
        ({"server": "https://empty..label"}, "server"),
        ({"server": f"https://{64 * 'a'}.test"}, "server"),
        ({"tls-server-name": "."}, "tls-server-name"),
        ({"tls-server-name": ".leading"}, "tls-server-name"),
        ({"tls-server-name": 64 * "ü"}, "tls-server-name"),
    ],
)
async def test_cluster_that_kubectl_rejects_is_rejected(
    path: Path, cluster: dict[str, Any], problem: str
) -> None:
    path.with_name("token").write_text("t\n")
    message = await refused(path, kubeconfig(SERVER, cluster=cluster))
    assert problem in message
    assert "canary" not in message


BASIC = "Basic " + base64.b64encode(b"u:p").decode()


@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        ({"token": "t"}, "Bearer t"),
        ({"tokenFile": "token"}, "Bearer file"),
        ({"token": "", "tokenFile": "token"}, "Bearer file"),
        ({"token": "t", "tokenFile": "token"}, "Bearer file"),
        ({"token": "t", "tokenFile": "empty"}, "Bearer t"),
        ({"token": "t", "tokenFile": "absent"}, "Bearer t"),
        ({"tokenFile": "token", "password": "p"}, "Bearer file"),
        ({"username": "u", "password": "p"}, BASIC),
        ({"username": "u"}, "Basic " + base64.b64encode(b"u:").decode()),
        ({"token": "t", "exec": EXEC}, "Bearer t"),
        ({"token": "t", "exec": EXEC | {"interactiveMode": "Always"}}, "Bearer t"),
        ({"tokenFile": "token", "exec": EXEC}, "Bearer file"),
        ({"username": "u", "password": "p", "exec": EXEC}, BASIC),
        ({"token": "t", "auth-provider": OIDC}, "Bearer t"),
        ({"username": "u", "password": "p", "auth-provider": OIDC}, BASIC),
        ({"token": "t", "client-key": "absent", "client-key-data": "YQ=="}, "Bearer t"),
        ({"token": "t", "exec": None, "auth-provider": None, "as": "", "as-uid": None}, "Bearer t"),
        ({"token": "t", "unknown": 5}, "Bearer t"),
    ],
)
async def test_credential_is_the_one_that_kubectl_sends(
    path: Path, user: dict[str, Any], authorization: str
) -> None:
    path.with_name("empty").write_text("\n")
    path.with_name("token").write_text("file\n")
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.headers() == [("Authorization", authorization)]


@pytest.mark.parametrize("more", [{}, {"exec": EXEC}, {"token": "t"}, {"username": "u"}])
async def test_client_certificate_is_preferred_to_the_plugin(
    path: Path, authority: Authority, more: dict[str, Any]
) -> None:
    pair = authority.issue("someone")
    encoded = base64.encodebytes(pair.cert.read_bytes()).decode()
    user = {"client-certificate-data": encoded, "client-key": str(pair.key), **more}
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.certificate == pair.cert.read_bytes()
    assert bool(access.credential.authorization) is bool({"token", "username"} & more.keys())


@pytest.mark.parametrize(
    "user",
    [
        {},
        {"token": "t", "as": "jane"},
        {"tokenFile": "absent"},
        {"username": "u", "password": "p"},
        {"exec": EXEC},
        CERTIFICATE,
    ],
)
@pytest.mark.parametrize("scheme", ["http", "HTTP"])
async def test_credential_is_not_sent_without_tls(
    path: Path, scheme: str, user: dict[str, Any]
) -> None:
    access = await read(path, kubeconfig(f"{scheme}://127.0.0.1:8001", user=user))
    impersonation = [("Impersonate-User", "jane")] if "as" in user else []
    assert access.credential.headers() == impersonation
    assert (access.credential.certificate, access.tls) == (b"", None)


@pytest.mark.parametrize(
    ("server", "used"),
    [
        ("https://a.test/", "https://a.test"),
        ("HTTPS://a.test:1/p/", "https://a.test:1/p"),
        ("https://a.test?x=y", "https://a.test"),
        ("https://a.test/p/#x", "https://a.test/p"),
    ],
)
async def test_server_is_reached_without_query_and_fragment(
    path: Path, server: str, used: str
) -> None:
    access = await read(path, kubeconfig(server))
    assert (access.endpoint.server, access.endpoint.skips_verification) == (used, False)


def write_token(path: Path, text: str) -> None:
    """Writes a kubeconfig whose token is this YAML."""
    content = yaml.safe_dump({**kubeconfig(SERVER), "users": []})
    users = "- name: fake\n  user:\n    token: "
    path.write_text(content.replace("users: []\n", "") + f"users:\n{users}{text}\n")


@pytest.mark.parametrize("text", ["5", "0x1F", "0123", "1.50", "1e3", "1_000", "yes", "y", "Off"])
async def test_plain_scalar_that_is_no_string_is_rejected(path: Path, text: str) -> None:
    write_token(path, text)
    with pytest.raises(ClientConfigError, match=r"users\[fake\].user.token must be a string"):
        await load(KubeconfigRef(path), side="remote")


@pytest.mark.parametrize("text", ["2020-01-01", "12:30:45", "=", "'5'", '"yes"', "!!str 5"])
async def test_plain_scalar_that_is_a_string_for_kubectl_is_accepted(path: Path, text: str) -> None:
    write_token(path, text)
    access = await load(KubeconfigRef(path), side="remote")
    sent = text.removeprefix("!!str ").strip("'\"")
    assert access.credential.authorization == f"Bearer {sent}"


async def test_first_document_counts(path: Path) -> None:
    write_token(path, "fake\n---\nkind: List")
    assert (await load(KubeconfigRef(path), side="remote")).endpoint.server == SERVER


async def test_first_file_with_an_entry_or_a_current_context_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are not merged field by field: the second file's user is not used at all."""
    first = {"users": [{"name": "fake", "user": {"token": "first"}}]}
    second = kubeconfig(SERVER, user={"token": "second", "as": "jane"}, namespace="second")
    third = kubeconfig("https://other.test", context="other") | {"current-context": "other"}
    files = [
        write(tmp_path / name, content)
        for name, content in (("1", first), ("2", second), ("3", third))
    ]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, ["/absent", "", *files])))
    access = await load(KubeconfigRef(), side="home")
    assert (access.endpoint.server, access.namespace) == (SERVER, "second")
    assert access.credential.headers() == [("Authorization", "Bearer first")]


async def test_wrong_file_of_a_list_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write(tmp_path / "good", kubeconfig(SERVER))
    bad = write(tmp_path / "bad", {"users": [{"name": "a", "user": {"token": 5}}]})
    monkeypatch.setenv("KUBECONFIG", f"{good}:{bad}")
    with pytest.raises(ClientConfigError, match=rf"{bad}: users\[a\].user.token must be a string"):
        await load(KubeconfigRef(), side="home")


@pytest.mark.parametrize(
    "status",
    [
        {"token": 5},
        {"token": False},
        {"token": ["a"]},
        {"token": " \n"},
        {"token": "a\n"},
        {"token": "a", "clientKeyData": "k"},
        {"token": "a", "expirationTimestamp": 5},
        {"token": "a", "expirationTimestamp": "soon"},
        {"token": "a", "expirationTimestamp": False},
        {"clientCertificateData": "\ud800", "clientKeyData": "k"},
        {"clientKeyData": 5},
    ],
)
async def test_plugin_without_a_usable_credential_is_rejected(
    path: Path, status: dict[str, Any]
) -> None:
    user = exec_user(path.with_name("plugin"), response=credential(status))
    message = await refused(path, kubeconfig(SERVER, user=user))
    assert "returned" in message
    assert list(status)[-1] in message or "clientCertificateData" in message


async def test_plugin_with_another_kind_is_rejected(path: Path) -> None:
    response = credential({"token": "a"}).replace("ExecCredential", "Secret")
    user = exec_user(path.with_name("plugin"), response=response)
    message = await refused(path, kubeconfig(SERVER, user=user))
    assert "did not write an ExecCredential with this kind" in message


async def test_plugin_with_deeply_nested_output_is_rejected(path: Path) -> None:
    response = "head -c 100000 /dev/zero | tr '\\0' '['\n"
    user = exec_user(path.with_name("plugin"), response=response)
    assert "did not write an ExecCredential" in await refused(path, kubeconfig(SERVER, user=user))


@pytest.mark.parametrize("name", ["certificate-authority", "tokenFile", "kubeconfig"])
async def test_endless_file_is_an_error(path: Path, name: str) -> None:
    cluster = {name: "/dev/zero"} if name == "certificate-authority" else {}
    user = {name: "/dev/zero"} if name == "tokenFile" else {"token": "t"}
    ref = KubeconfigRef(write(path, kubeconfig(SERVER, user=user, cluster=cluster)))
    with pytest.raises(ClientConfigError, match="/dev/zero cannot be read: File too large"):
        await load(KubeconfigRef(Path("/dev/zero")) if name == "kubeconfig" else ref, side="remote")


async def test_plugin_without_an_interactive_mode_runs_with_v1beta1(path: Path) -> None:
    response = credential({"token": "abc"}).replace("k8s.io/v1", "k8s.io/v1beta1")
    version = "client.authentication.k8s.io/v1beta1"
    user = exec_user(path.with_name("plugin"), response=response, apiVersion=version)
    del user["exec"]["interactiveMode"]
    user["exec"]["env"] = [{"name": "A"}]
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.authorization == "Bearer abc"


def write_yaml(path: Path, text: str) -> None:
    path.write_text(text)


def many_aliases(first: str, opening: str, closing: str) -> str:
    """A list in which each item refers nine times to the item before."""
    items = [f"&a{n + 1} {opening}{f'*a{n}, ' * 9}{closing}" for n in range(6)]
    return f"[&a0 {first}, {', '.join(items)}]"


@pytest.mark.parametrize(
    "text",
    [
        *("!!timestamp x", "!!int ''", "!!bool x", "[" * 10_000),
        f"t\n    exec: {{? 0x{'f' * 5000} : a}}",
    ],
)
async def test_yaml_that_cannot_be_read_is_an_error(path: Path, text: str) -> None:
    write_token(path, text)
    with pytest.raises(ClientConfigError, match="it is not a kubeconfig"):
        await load(KubeconfigRef(path), side="remote")


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a]",
        many_aliases("x", "[", "]"),
        many_aliases("{k: v}", "{<<: [", "]}"),
        "[" + "a," * 100_000 + "]",
    ],
    ids=["endless", "lists", "merged maps", "no alias"],
)
async def test_file_with_too_many_values_is_rejected(path: Path, text: str) -> None:
    write_token(path, f"t\nother: {text}")
    with pytest.raises(ClientConfigError, match="it has more than 100000 values"):
        await load(KubeconfigRef(path), side="remote")


@pytest.mark.parametrize("text", ["*canary", "!canary canary", "a: canary: b", "@canary"])
async def test_line_that_is_no_yaml_is_named_without_its_content(path: Path, text: str) -> None:
    write_token(path, text)
    with pytest.raises(ClientConfigError, match="line 17 is not valid YAML") as caught:
        await load(KubeconfigRef(path), side="remote")
    assert "canary" not in str(caught.value)


async def test_alias_is_replaced_by_its_value(path: Path) -> None:
    write_token(path, "&a t\n    as: *a")
    access = await load(KubeconfigRef(path), side="remote")
    assert access.credential.headers() == [("Authorization", "Bearer t"), ("Impersonate-User", "t")]


@pytest.mark.parametrize("value", ["canary\0", "canary\ud800"])
@pytest.mark.parametrize("field", ["token", "username", "tokenFile", "as-user-extra"])
async def test_text_that_cannot_be_encoded_is_rejected(path: Path, field: str, value: str) -> None:
    content = {value: ["a"]} if field == "as-user-extra" else value
    message = await refused(path, kubeconfig(SERVER, user={"as": "jane", field: content}))
    assert f"users[fake].user.{field} must be text" in message
    assert "canary" not in message


@pytest.mark.parametrize(
    "value",
    [
        *("!!binary YQ==", "!!set {a}", "{!!timestamp 2020-01-01: a}"),
        "[&a0 [x], " + ", ".join(f"&a{n + 1} {'[' * 50}*a{n}{']' * 50}" for n in range(60)) + "]",
    ],
    ids=["binary", "set", "timestamp", "deep"],
)
async def test_extension_that_json_cannot_contain_is_rejected(path: Path, value: str) -> None:
    """A plugin receives the extension of its cluster as JSON."""
    extension = {"name": "client.authentication.k8s.io/exec", "extension": "VALUE"}
    user = exec_user(path.with_name("plugin"), provideClusterInfo=True)
    content = kubeconfig(SERVER, user=user, cluster={"extensions": [extension]})
    write_yaml(path, yaml.safe_dump(content).replace("VALUE", value))
    with pytest.raises(ClientConfigError, match=r"is not valid YAML|cannot be started"):
        await load(KubeconfigRef(path), side="remote")


@pytest.mark.parametrize(
    "user",
    [
        {"tokenFile": "a\r\nb"},
        {"as": "jane", "as-user-extra": {"a\r\nb": 5}},
        {"exec": {**EXEC, "command": "a\r\nb"}},
    ],
)
async def test_message_is_one_printable_line(path: Path, user: dict[str, Any]) -> None:
    message = await refused(path, kubeconfig(SERVER, user=user))
    assert r"a\r\nb" in message
    assert message.isprintable()


async def test_deeply_nested_claims_are_no_expiry(path: Path) -> None:
    claims = base64.urlsafe_b64encode(b"[" * 100_002).decode()
    access = await read(path, kubeconfig(SERVER, user={"token": f"e30.{claims}.c2ln"}))
    assert access.token_expiry() is None
