"""Reading kubeconfigs: what works, and the one sentence for what does not."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from sync.kube import credential_plugins
from sync.kube import credentials as access_module
from sync.kube.api_errors import ClientConfigError
from sync.kube.credentials import PLUGIN_SECONDS, Credentials, load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.child_process import recorded_pids, wait_until_ended
from tests.fakeapi import CLOSED_PORT, Authority
from tests.fakeapi.kubeconfig import credential, kubeconfig, plugin, write
from tests.virtual_time_loop import VirtualLoop, poll_in_real_time

SERVER = "https://127.0.0.1:6443"
CANARY = "canary-4711"


async def refused(ref: KubeconfigRef) -> str:
    """The message of the ClientConfigError of a read; tracebacks are searched for secrets."""
    with pytest.raises(ClientConfigError) as caught:
        await load(ref, side="remote")
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert CANARY not in repr(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config"


async def read(path: Path, content: dict[str, Any], **ref: Any) -> Credentials:
    return await load(KubeconfigRef(write(path, content), **ref), side="remote")


def encoded(file: str) -> str:
    return base64.b64encode(Path(file).read_bytes()).decode()


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def test_address_and_context(path: Path) -> None:
    access = await read(path, kubeconfig("https://example.test:6443/prefix/", context="prod"))
    assert access.endpoint.server == "https://example.test:6443/prefix"
    assert (access.endpoint.host, access.endpoint.port, access.context) == (
        "example.test",
        6443,
        "prod",
    )
    assert access.credential.authorization == "Bearer fake"
    assert access.tls is not None


async def test_namespace_of_the_context_is_empty_if_unset(path: Path) -> None:
    config = kubeconfig(SERVER, namespace="shop")
    assert (await read(path, config)).namespace == "shop"
    del config["contexts"][0]["context"]["namespace"]
    assert (await read(path, config)).namespace == ""


async def test_default_ports(path: Path) -> None:
    assert (await read(path, kubeconfig("https://example.test"))).endpoint.port == 443
    assert (await read(path, kubeconfig("http://example.test"))).endpoint.port == 80


async def test_plain_http_has_no_tls(path: Path) -> None:
    assert (await read(path, kubeconfig("http://127.0.0.1:8001"))).tls is None


async def test_token_is_sent_and_never_shown(path: Path) -> None:
    access = await read(path, kubeconfig(SERVER, user={"token": CANARY}))
    assert access.credential.authorization == f"Bearer {CANARY}"
    assert CANARY not in repr(access)


async def test_password(path: Path) -> None:
    access = await read(path, kubeconfig(SERVER, user={"username": "u", "password": "p"}))
    expected = base64.b64encode(b"u:p").decode()
    assert access.credential.authorization == f"Basic {expected}"


@pytest.mark.parametrize("absolute", [True, False])
async def test_token_file_without_its_last_newline(path: Path, *, absolute: bool) -> None:
    token = path.with_name("token")
    token.write_text("abc\n")
    named = str(token) if absolute else "token"
    access = await read(path, kubeconfig(SERVER, user={"tokenFile": named}))
    assert access.credential.authorization == "Bearer abc"


async def test_another_context(path: Path) -> None:
    content = kubeconfig("https://one.test")
    other = kubeconfig("https://two.test", context="other", user={"token": "t"})
    for part in ("clusters", "users", "contexts"):
        content[part] += other[part]
    access = await read(path, content, context="other")
    assert (access.endpoint.server, access.context) == ("https://two.test", "other")
    assert access.credential.authorization == "Bearer t"


async def test_kubeconfig_lists_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = kubeconfig("https://one.test", user={"token": "t"})
    first = write(tmp_path / "first", {**content, "users": []})
    second = write(tmp_path / "second", {"users": content["users"]})
    files = [str(first), str(tmp_path / "missing"), str(second)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))
    access = await load(KubeconfigRef(), side="home")
    assert access.credential.authorization == "Bearer t"


async def test_first_current_context_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in kubectl: a second cluster's file behind one's own changes nothing."""
    files = []
    for name in ("one", "two"):
        entry = {"name": name, "cluster": {"server": f"https://{name}.test"}}
        config = {
            "clusters": [entry],
            "users": [{"name": name, "user": {"token": name}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        files.append(str(write(tmp_path / name, config)))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))
    access = await load(KubeconfigRef(), side="home")
    assert (access.context, access.endpoint.server) == ("one", "https://one.test")
    other = await load(KubeconfigRef(context="two"), side="home")
    assert other.endpoint.server == "https://two.test"


async def test_tls_server_name_and_proxy(path: Path) -> None:
    more = {"tls-server-name": "api.test", "proxy-url": "http://proxy.test:3128"}
    access = await read(path, kubeconfig(SERVER, cluster=more))
    assert (access.endpoint.tls_server_name, access.endpoint.proxy) == (
        "api.test",
        "http://proxy.test:3128",
    )


async def test_insecure_skip_tls_verify_disables_verification(path: Path) -> None:
    access = await read(path, kubeconfig(SERVER, cluster={"insecure-skip-tls-verify": True}))
    assert access.tls is not None
    assert not access.tls.check_hostname


async def test_certificates_as_files_and_as_data(path: Path, authority: Authority) -> None:
    pair = authority.issue("someone")
    files = {"client-certificate": str(pair.cert), "client-key": str(pair.key)}
    data = {f"{key}-data": encoded(name) for key, name in files.items()}
    for user in (files, data):
        cluster = {"certificate-authority": str(authority.cert)}
        access = await read(path, kubeconfig(SERVER, user=user, cluster=cluster))
        assert access.tls is not None
        assert len(access.tls.get_ca_certs()) == 1


async def test_plugin_returns_a_token(path: Path) -> None:
    user = plugin(path.with_name("plugin"), credential({"token": "abc"}))
    access = await read(path, kubeconfig(SERVER, user=user))
    assert access.credential.authorization == "Bearer abc"


@pytest.mark.parametrize(
    "script",
    [
        f"echo {CANARY} >&2; exit 3\n",
        f"echo {CANARY}\n",
        credential({}),
        credential({"clientCertificateData": CANARY}),
        credential({"clientCertificateData": CANARY, "clientKeyData": CANARY}),
    ],
)
async def test_plugin_fails(path: Path, script: str) -> None:
    user = plugin(path.with_name("plugin"), script)
    message = await refused(KubeconfigRef(write(path, kubeconfig(SERVER, user=user))))
    assert "plugin" in message or "PEM" in message


#: Scripts that hang: one by itself, one in what it has started, one that ended and left another.
HANGING = {
    "itself": "echo $$ >PIDS; exec sleep 60\n",
    "its child": "sleep 60 & echo $$ $! >PIDS; wait\n",
    "an orphan": "sleep 60 & echo $! >PIDS\n",
}


async def time_out(user: dict[str, Any], path: Path, pids: Path) -> tuple[str, list[int]]:
    """Lets the time of a plugin that hangs pass once it has written its file; returns the message
    and the content."""
    reading = asyncio.create_task(
        refused(KubeconfigRef(write(path, kubeconfig(SERVER, user=user))))
    )
    await poll_in_real_time(lambda: recorded_pids(pids))
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.hold(PLUGIN_SECONDS)
    return await reading, recorded_pids(pids)


@pytest.mark.parametrize("script", HANGING.values(), ids=HANGING.keys())
async def test_plugin_that_times_out_is_killed_and_reported(path: Path, script: str) -> None:
    pids = path.with_name("pids")
    user = plugin(path.with_name("plugin"), script.replace("PIDS", str(pids)))
    message, running = await time_out(user, path, pids)
    assert "did not answer" in message
    await wait_until_ended(running)


async def test_plugin_is_killed_when_its_caller_is_cancelled(path: Path) -> None:
    """As where the bridge is stopped while it hangs."""
    pids = path.with_name("pids")
    script = HANGING["its child"].replace("PIDS", str(pids))
    user = plugin(path.with_name("plugin"), script)
    reading = asyncio.create_task(read(path, kubeconfig(SERVER, user=user)))
    await poll_in_real_time(lambda: recorded_pids(pids))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await wait_until_ended(recorded_pids(pids))


async def test_plugin_may_prompt_in_a_terminal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it stays in the terminal's group, and is ended by itself."""
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(credential_plugins, "sys", terminal)
    pids = path.with_name("pids")
    script = "cut -d' ' -f5 /proc/$$/stat >PGID; echo $$ >PIDS; exec sleep 60\n"
    script = script.replace("PIDS", str(pids)).replace("PGID", str(path.with_name("pgid")))
    user = plugin(path.with_name("plugin"), script)
    _, running = await time_out(user, path, pids)
    await wait_until_ended(running)
    assert int(path.with_name("pgid").read_text()) == os.getpgid(0)


async def test_plugin_is_missing(path: Path) -> None:
    user = plugin(path.with_name("plugin"), "")
    path.with_name("plugin").unlink()
    message = await refused(KubeconfigRef(write(path, kubeconfig(SERVER, user=user))))
    assert "plugin" in message


async def test_failing_plugin_affects_its_side_only(tmp_path: Path) -> None:
    slow = "sleep 0.3\n" + credential({"token": "abc"})
    good = kubeconfig(SERVER, user=plugin(tmp_path / "slow", slow))
    bad = kubeconfig(SERVER, user=plugin(tmp_path / "bad", "exit 1"))
    home, remote = await asyncio.gather(
        load(KubeconfigRef(write(tmp_path / "good.yaml", good)), side="home"),
        load(KubeconfigRef(write(tmp_path / "bad.yaml", bad)), side="remote"),
        return_exceptions=True,
    )
    assert isinstance(home, Credentials)
    assert isinstance(remote, ClientConfigError)


async def test_missing_file_names_the_option(path: Path) -> None:
    message = await refused(KubeconfigRef(path))
    assert str(path) in message
    assert "--kubeconfig" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "empty"),
        (" \n", "empty"),
        (f"a: [{CANARY}", "not a kubeconfig"),
        (f"- {CANARY}\n", "not a kubeconfig"),
        (CANARY, "not a kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "current-context"),
    ],
)
async def test_not_a_kubeconfig(path: Path, content: str, expected: str) -> None:
    overwrite(path, content.encode())
    assert expected in await refused(KubeconfigRef(path))


async def test_binary_file(path: Path) -> None:
    overwrite(path, b"\xff\xfe" * 8)
    assert "not a text file" in await refused(KubeconfigRef(path))


async def test_folder(tmp_path: Path) -> None:
    assert "cannot be read" in await refused(KubeconfigRef(tmp_path))


async def test_file_in_an_unreadable_folder_is_an_error_and_not_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def denied(file: Any, *args: Any, **options: Any) -> os.stat_result:
        if file == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(file, *args, **options)

    monkeypatch.setattr(os, "stat", denied)
    assert KubeconfigRef(path).existing() == [path]


@pytest.mark.parametrize("part", ["a" * 300, "a\0b"], ids=["too long", "NUL"])
async def test_path_that_no_file_can_have_is_one_sentence(tmp_path: Path, part: str) -> None:
    message = await refused(KubeconfigRef(tmp_path / part / "config"))
    assert message.startswith(f"remote: kubeconfig {tmp_path}")
    assert "File name too long" in message or "no such file" in message


@pytest.mark.parametrize("variable", ["", "~no-such-user/config", "~/a:~no-such-user/config"])
async def test_path_in_a_home_directory_that_does_not_exist_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # without an entry in passwd
    monkeypatch.setenv("KUBECONFIG", variable)
    assert await refused(KubeconfigRef()) == (
        f"remote: kubeconfig {variable or '~/.kube/config'}: no such file; name another with "
        "--kubeconfig"
    )


async def test_client_certificate_is_loaded_without_a_temporary_directory(
    path: Path, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in one would stay when the process is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    pair = authority.issue("someone")
    user = {
        "client-certificate-data": encoded(str(pair.cert)),
        "client-key-data": encoded(str(pair.key)),
    }
    assert (await read(path, kubeconfig(SERVER, user=user))).credential.certificate


async def test_unknown_context_is_named(path: Path) -> None:
    ref = KubeconfigRef(write(path, kubeconfig(SERVER, user={"token": CANARY})), context="nope")
    message = await refused(ref)
    assert "nope" in message
    assert "kubectl config" in message


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda config: config["clusters"][0].update(name="another"), "fake"),
        (lambda config: config["users"][0].update(name="another"), "user"),
        (lambda config: config.update({"current-context": ""}), "current-context"),
        (lambda config: config["clusters"][0]["cluster"].pop("server"), "server"),
    ],
    ids=["unknown cluster", "unknown user", "no current context", "no server"],
)
async def test_incomplete_kubeconfig_is_rejected(
    path: Path, change: Callable[[dict[str, Any]], object], word: str
) -> None:
    content = kubeconfig(SERVER, user={"token": CANARY})
    change(content)
    assert word in await refused(KubeconfigRef(write(path, content)))


@pytest.mark.parametrize("server", ["127.0.0.1:6443", "ftp://x", "https://", "https://x:port"])
async def test_server_that_is_no_url_is_rejected(path: Path, server: str) -> None:
    assert "not an http(s) URL" in await refused(KubeconfigRef(write(path, kubeconfig(server))))


async def test_missing_and_bad_certificates(path: Path) -> None:
    gone = {"certificate-authority": "gone.crt"}
    message = await refused(KubeconfigRef(write(path, kubeconfig(SERVER, cluster=gone))))
    assert "gone.crt" in message
    for data in (CANARY.encode(), b"-----BEGIN CERTIFICATE-----\n"):
        bad = {"certificate-authority-data": base64.b64encode(data).decode()}
        message = await refused(KubeconfigRef(write(path, kubeconfig(SERVER, cluster=bad))))
        assert "PEM" in message


async def test_bad_base64(path: Path) -> None:
    user = {"client-certificate-data": f"{CANARY}=x", "client-key-data": f"{CANARY}=x"}
    await refused(KubeconfigRef(write(path, kubeconfig(SERVER, user=user))))


async def test_key_of_another_certificate(path: Path, authority: Authority) -> None:
    one, two = authority.issue("one"), authority.issue("two")
    user = {"client-certificate": str(one.cert), "client-key": str(two.key)}
    message = await refused(KubeconfigRef(write(path, kubeconfig(SERVER, user=user))))
    assert "belong together" in message


async def test_encrypted_key_does_not_prompt(path: Path, authority: Authority) -> None:
    pair = authority.issue("locked")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = path.with_name("locked.key")
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    user = {"client-certificate": str(pair.cert), "client-key": str(locked)}
    assert "PEM" in await refused(KubeconfigRef(write(path, kubeconfig(SERVER, user=user))))


async def test_incomplete_oidc_does_not_show_its_tokens(path: Path) -> None:
    config = {"refresh-token": CANARY, "client-secret": CANARY}
    user = {"auth-provider": {"name": "oidc", "config": config}}
    assert "client-id" in await refused(KubeconfigRef(write(path, kubeconfig(SERVER, user=user))))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in how kubernetes uses aiohttp
async def test_unreachable_oidc_issuer(path: Path) -> None:
    config = {
        "refresh-token": CANARY,
        "client-id": "c",
        "client-secret": CANARY,
        "idp-issuer-url": f"http://127.0.0.1:{CLOSED_PORT}",
    }
    user = {"auth-provider": {"name": "oidc", "config": config}}
    assert "oidc: the issuer did not renew" in await refused(
        KubeconfigRef(write(path, kubeconfig(SERVER, user=user)))
    )


async def test_token_with_control_characters_is_rejected(path: Path) -> None:
    user = {"token": f"{CANARY}\nX-Other: 1"}
    assert "token" in await refused(KubeconfigRef(write(path, kubeconfig(SERVER, user=user))))


async def test_concurrent_renewals_share_one_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "RENEW_INTERVAL", 0.0)
    access = await read(path, kubeconfig(SERVER, user={"token": "old"}))
    write(path, kubeconfig(SERVER, user={"token": "new"}))
    seen = access.generation
    assert await asyncio.gather(*(access.renew(seen) for _ in range(3))) == [True] * 3
    assert access.credential.authorization == "Bearer new"
    assert access.generation == seen + 1


async def test_renewals_are_rate_limited(path: Path) -> None:
    access = await read(path, kubeconfig(SERVER, user={"token": "old"}))
    write(path, kubeconfig(SERVER, user={"token": "new"}))
    assert not await access.renew(access.generation)
    assert access.credential.authorization == "Bearer old"


async def test_read_continues_when_its_caller_is_cancelled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin may take longer than any one request may."""
    monkeypatch.setattr(access_module, "RENEW_INTERVAL", 0.0)
    slow = plugin(path.with_name("plugin"), "sleep 0.2\n" + credential({"token": "abc"}))
    access = await read(path, kubeconfig(SERVER, user=slow))
    seen = access.generation
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await access.renew(seen)
    assert access.generation == seen
    async with asyncio.timeout(10):
        assert await access.renew(seen)
    assert access.generation == seen + 1
