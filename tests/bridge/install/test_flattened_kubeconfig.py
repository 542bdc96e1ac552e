"""Self-contained kubeconfigs: all files are inlined, or an error names the alternative."""

from __future__ import annotations

import base64
import os
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.install import flattened_kubeconfig, untrusted_kubeconfig
from sync.kube import bearer_token, kubeconfig
from sync.kube.api_errors import ClientConfigError
from sync.kube.bearer_token import RenewedToken, origin_of
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.install.kubeconfigs import AWS, CANARY, SERVER, config, write

#: A user whose key is missing.
NO_KEY = {"client-certificate-data": "YQ==", "client-key": "/absent/key"}


def read(path: Path, content: dict[str, Any], context: str | None = None) -> dict[str, Any]:
    found = flattened_kubeconfig.flatten_kubeconfig(KubeconfigRef(write(path, content), context))
    assert CANARY not in repr(found)
    parsed: dict[str, Any] = yaml.safe_load(found.text)
    assert parsed["current-context"] == found.context
    return parsed


def refused(path: Path, content: dict[str, Any]) -> str:
    with pytest.raises(ClientConfigError) as caught:
        flattened_kubeconfig.flatten_kubeconfig(KubeconfigRef(write(path, content)))
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config"


def test_texts_that_resemble_other_types_stay_texts(path: Path) -> None:
    """kubectl reads ``y`` as true, and ``1e3`` as a number."""
    path.write_text(
        f"""{{current-context: "y", contexts: [{{name: "y", context: {{cluster: c, user: u}}}}],
        clusters: [{{name: c, cluster: {{server: "{SERVER}", tls-server-name: "n"}}}}],
        users: [{{name: u, user: {{token: "1e3", as: "0o7"}}}}]}}"""
    )
    text = flattened_kubeconfig.flatten_kubeconfig(KubeconfigRef(path)).text
    for content in (text.encode(), untrusted_kubeconfig.validate(text.encode())):
        made = kubeconfig.parse(content)
        assert made is not None
        assert made["current-context"] == "y"
        assert made["clusters"][0]["cluster"]["tls-server-name"] == "n"
        assert made["users"][0]["user"] == {"token": "1e3", "as": "0o7"}


def test_relative_files_are_inlined(path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (path.parent / name).write_bytes(name.encode())
    user = {"client-certificate": "cert", "client-key": str(path.parent / "key")}
    made = read(path, config(user=user, cluster={"certificate-authority": "ca"}))
    assert made["clusters"][0]["cluster"] == {
        "server": SERVER,
        "certificate-authority-data": encoded(b"ca"),
    }
    assert made["users"][0]["user"] == {
        "client-certificate-data": encoded(b"cert"),
        "client-key-data": encoded(b"key"),
    }


def test_key_without_a_certificate_is_ignored(path: Path) -> None:
    made = read(path, config(user={"token": "t", "client-key": "absent"}))
    assert made["users"][0]["user"] == {"token": "t"}


def test_token_file_is_inlined_with_a_note(path: Path) -> None:
    (path.parent / "token").write_text(f"{CANARY}\n")
    found = flattened_kubeconfig.flatten_kubeconfig(
        KubeconfigRef(write(path, config(user={"tokenFile": "token"})))
    )
    assert yaml.safe_load(found.text)["users"][0]["user"] == {"token": CANARY}
    assert "copied from its file once" in "".join(found.notes)


def test_only_the_chosen_context_is_included(path: Path) -> None:
    content = config()
    content["users"].append({"name": "admin", "user": {"token": "another's"}})
    content["contexts"].append({"name": "other", "context": {"cluster": "c", "user": "admin"}})
    assert "another's" not in yaml.safe_dump(read(path, content))
    assert "another's" in yaml.safe_dump(read(path, content, "other"))


def test_first_file_with_an_entry_takes_precedence(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(path, {"current-context": "far", "users": config()["users"]})
    second = write(path.with_name("second"), config(user={"token": "second"}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, (first, "/absent", second))))
    found = flattened_kubeconfig.flatten_kubeconfig(KubeconfigRef())
    assert yaml.safe_load(found.text)["users"][0]["user"] == {"token": CANARY}


def test_impersonation_stays_in_the_kubeconfig(path: Path) -> None:
    """Without impersonation the pods would have all permissions of the credential."""
    user = {
        "token": CANARY,
        "as": "jane",
        "as-uid": "u",
        "as-groups": ["dev"],
        "as-user-extra": {"a": ["b"]},
    }
    assert read(path, config(user=user))["users"][0]["user"] == user


def test_token_that_a_bridge_on_this_machine_renewed_is_the_one_installed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(path.parent / "state"))
    now = datetime.now(UTC)
    bearer_token.keep(RenewedToken(origin_of("own"), "next", now, now + timedelta(hours=1)))
    user = {"token": "own"}
    assert read(path, config(user=user))["users"][0]["user"] == {"token": "next"}


def test_proxy_stays_in_the_kubeconfig(path: Path) -> None:
    made = read(path, config(cluster={"proxy-url": "http://proxy.test:3128"}))
    assert made["clusters"][0]["cluster"]["proxy-url"] == "http://proxy.test:3128"


def test_proxy_of_the_environment_is_noted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    found = flattened_kubeconfig.flatten_kubeconfig(KubeconfigRef(write(path, config())))
    assert "set proxy-url" in "".join(found.notes)


@pytest.mark.parametrize(
    ("user", "cluster", "words"),
    [
        (AWS, {}, "credential plugin"),
        ({"username": "u", "password": "p"}, {}, "logs in with a password"),
        ({"auth-provider": {"name": "oidc"}}, {}, "logs in again"),
        (NO_KEY, {}, "no such file: /absent/key"),
        ({"token": "t"}, {"certificate-authority": "/absent"}, "no such file: /absent"),
        ({"token": [CANARY]}, {}, "users[u].user.token must be a string"),
        ({"client-certificate-data": "!"}, {}, "client-certificate-data must be base64"),
        (None, {"server": "https://127.0.0.1:6443"}, "which a pod cannot reach"),
        (None, {"server": "https://localhost:6443"}, "which a pod cannot reach"),
        (None, {"proxy-url": "http://127.0.0.1:3128"}, "which a pod cannot reach"),
    ],
)
def test_machine_local_settings_are_rejected(
    path: Path, user: dict[str, Any] | None, cluster: dict[str, Any], words: str
) -> None:
    assert words in refused(path, config(user=user, cluster=cluster))


def test_credential_plugin_error_names_the_alternative(path: Path) -> None:
    assert "bridge rbac remote" in refused(path, config(user=AWS))


@pytest.mark.parametrize("missing", ["contexts", "clusters", "users", "current-context"])
def test_missing_entry_is_named(path: Path, missing: str) -> None:
    content = config()
    del content[missing]
    assert missing.rstrip("s") in refused(path, content)


def test_invalid_or_missing_kubeconfig_is_an_error(path: Path) -> None:
    path.write_text(f"{{ {CANARY}: [")
    with pytest.raises(ClientConfigError, match="not a kubeconfig") as caught:
        flattened_kubeconfig.flatten_kubeconfig(KubeconfigRef(path))
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ClientConfigError, match="no such file"):
        flattened_kubeconfig.flatten_kubeconfig(KubeconfigRef(path.with_name("absent")))
