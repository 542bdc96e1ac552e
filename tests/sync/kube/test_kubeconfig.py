"""Kubeconfigs as client-go reads them: lists, paths, impersonation, plugins."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sync.kube.api_errors import ClientConfigError
from sync.kube.credentials import ClientConfig, KubeconfigRef, load
from tests.fakeapi import Authority
from tests.fakeapi.kubeconfig import credential, kubeconfig, plugin, write

SERVER = "https://127.0.0.1:6443"


async def read(path: Path, content: dict[str, Any]) -> ClientConfig:
    return await load(KubeconfigRef(write(path, content)), side="remote")


async def refused(path: Path, content: dict[str, Any]) -> str:
    with pytest.raises(ClientConfigError) as caught:
        await read(path, content)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config"


READ = """
import asyncio, sys
from pathlib import Path
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef

access = asyncio.run(load(KubeconfigRef(Path(sys.argv[1])), side="home"))
print(access.server, access.authorization())
print([name for name in sys.modules if "kubernetes" in name or "pydantic" in name])
"""


def test_reading_imports_no_models_of_apis(tmp_path: Path) -> None:
    user = plugin(tmp_path / "plugin", credential({"token": "abc"}))
    path = write(tmp_path / "config", kubeconfig("https://one.test", user=user))
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["https://one.test {'Authorization': 'Bearer abc'}", "[]"]


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
    assert access.authorization() == {"Authorization": "Bearer t"}


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
    assert access.ssl is not None
    assert len(access.ssl.get_ca_certs()) == 1


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
    assert access.headers() == [
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
    assert access.authorization() == {"Authorization": "Bearer abc"}


async def test_command_without_a_separator_is_looked_up_in_path(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = exec_user(path.with_name("some-plugin"), command="some-plugin")
    assert "cannot be started" in await refused(path, kubeconfig(SERVER, user=user))
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.authorization() == {"Authorization": "Bearer abc"}


@pytest.mark.parametrize("order", ["before", "after"])
async def test_plugin_with_much_stderr_does_not_block(path: Path, order: str) -> None:
    much = "head -c 3000000 /dev/zero | tr '\\0' 'x' >&2\n"
    response = credential({"token": "abc"})
    user = exec_user(
        path.with_name("plugin"), response=much + response if order == "before" else response + much
    )
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.authorization() == {"Authorization": "Bearer abc"}


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
    assert access.authorization() == {"Authorization": "Bearer abc"}
    assert access.client_certificate == pair.cert.read_bytes().rstrip(b"\n") + b"\n"


async def test_token_of_the_kubeconfig_is_preferred_to_the_plugin(path: Path) -> None:
    user = {**exec_user(path.with_name("plugin"), response="exit 1\n"), "token": "own"}
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.authorization() == {"Authorization": "Bearer own"}


async def test_plugin_with_another_api_version_is_rejected(path: Path) -> None:
    user = exec_user(path.with_name("plugin"), apiVersion="client.authentication.k8s.io/v1beta1")
    assert "apiVersion" in await refused(path, kubeconfig(SERVER, user=user))


async def test_interactive_plugin_is_rejected_without_a_terminal(path: Path) -> None:
    user = exec_user(path.with_name("plugin"), interactiveMode="Always")
    assert "needs a terminal" in await refused(path, kubeconfig(SERVER, user=user))
