"""Kubeconfigs read from a cluster: only those of the installer are accepted."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.install import flattened_kubeconfig, untrusted_kubeconfig
from bridge.install.untrusted_kubeconfig import RejectedKubeconfigError
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.install.kubeconfigs import CANARY, config, write

DATA = base64.b64encode(b"pem").decode()
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh"}


def accepted(content: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(
        untrusted_kubeconfig.validate(yaml.safe_dump(content).encode())
    )
    return parsed


def rejected(content: dict[str, Any] | bytes) -> str:
    raw = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
    with pytest.raises(RejectedKubeconfigError) as caught:
        untrusted_kubeconfig.validate(raw)
    assert CANARY not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        (None, {"certificate-authority-data": DATA}),
        ({"client-certificate-data": DATA, "client-key-data": DATA}, {}),
        ({"token": CANARY, "as": "a", "as-uid": "1", "as-groups": ["b"]}, {}),
        ({"token": CANARY, "as": "a", "as-user-extra": {"k": ["v"]}}, {}),
        (None, {"proxy-url": "http://proxy:3128", "tls-server-name": "api"}),
        (None, {"insecure-skip-tls-verify": True}),
        ({"token": CANARY, "extensions": [{"name": "x"}]}, {"extensions": [{"name": "x"}]}),
    ],
)
def test_kubeconfig_of_the_installer_is_accepted(
    tmp_path: Path, user: dict[str, Any] | None, cluster: dict[str, Any]
) -> None:
    path = write(tmp_path / "config", config(user=user, cluster=cluster))
    made = yaml.safe_load(flattened_kubeconfig.flatten_kubeconfig(KubeconfigRef(path)).text)
    assert accepted(made) == made


def test_fields_without_a_value_and_the_namespace_of_a_context_are_accepted() -> None:
    content = {**config(), "preferences": {}}
    content["contexts"][0]["context"]["namespace"] = "shop"
    assert "preferences" not in accepted(content)


@pytest.mark.parametrize(
    ("user", "field"),
    [
        ({"exec": EXEC}, "users[0].user.exec"),
        ({"token": CANARY, "exec": EXEC}, "users[0].user.exec"),
        ({"auth-provider": {"name": "oidc"}}, "users[0].user.auth-provider"),
        ({"tokenFile": "/etc/shadow"}, "users[0].user.tokenFile"),
        ({"token": CANARY, "tokenFile": "/etc/shadow"}, "users[0].user.tokenFile"),
        ({"client-certificate": "/home/x.pem"}, "users[0].user.client-certificate"),
        ({"client-key": "/home/x.key"}, "users[0].user.client-key"),
        ({"password": CANARY}, "users[0].user.password"),
        ({"token": f"{CANARY}\r\nX: y"}, "users[0].user.token"),
        ({"token": [CANARY]}, "users[0].user.token"),
        ({"client-key-data": "not base64!"}, "users[0].user.client-key-data"),
        ({"token": CANARY, "as-groups": "admins"}, "users[0].user.as-groups"),
        ({"token": CANARY, "as-user-extra": {"a": "b"}}, "users[0].user.as-user-extra"),
    ],
)
def test_a_user_with_a_program_a_file_or_an_unknown_field_is_rejected(
    user: dict[str, Any], field: str
) -> None:
    assert field in rejected(config(user=user))


@pytest.mark.parametrize(
    ("cluster", "field"),
    [
        ({"server": "http://203.0.113.7"}, "clusters[0].cluster.server"),
        ({"server": "file:///etc/shadow"}, "clusters[0].cluster.server"),
        ({"server": "https://"}, "clusters[0].cluster.server"),
        ({"server": "https://u:p@203.0.113.7"}, "clusters[0].cluster.server"),
        ({"server": "https://203.0.113.7/\x1b[2J"}, "clusters[0].cluster.server"),
        ({"certificate-authority": "/etc/shadow"}, "clusters[0].cluster.certificate-authority"),
        ({"proxy-url": "unix:///run/docker.sock"}, "clusters[0].cluster.proxy-url"),
        ({"insecure-skip-tls-verify": "yes"}, "clusters[0].cluster.insecure-skip-tls-verify"),
        ({"extensions": [{"name": "x"}]}, "clusters[0].cluster.extensions"),
    ],
)
def test_a_cluster_without_https_or_with_a_file_is_rejected(
    cluster: dict[str, Any], field: str
) -> None:
    assert field in rejected(config(cluster=cluster))


@pytest.mark.parametrize("entries", ["clusters", "users", "contexts"])
def test_more_or_less_than_one_entry_is_rejected(entries: str) -> None:
    content = config()
    content[entries] = content[entries] * 2
    assert entries in rejected(content)
    del content[entries]
    assert entries in rejected(content)


def test_a_context_that_refers_to_no_entry_is_rejected() -> None:
    content = config()
    content["contexts"][0]["context"]["user"] = "other"
    assert "contexts[0].context.user" in rejected(content)
    assert "current-context" in rejected({**config(), "current-context": "other"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"{" * 20_000,
        b"!!python/object/apply:os.system [id]",
        b"{" + CANARY.encode() + b": [",
        b" " * (untrusted_kubeconfig.MAX_BYTES + 1),
        b"a: !!bool b",
        b"a: &a [b]\nc: &c [*a, *c]",
    ],
    ids=["empty", "list", "binary", "deep", "python", "broken", "large", "tag", "endless"],
)
def test_content_that_is_no_kubeconfig_is_rejected(content: bytes) -> None:
    rejected(content)


def test_merged_aliases_of_some_lines_take_no_time() -> None:
    """With PyYAML before 6.0.4, each level doubled the values of the one before."""
    levels = ["a0: &a0 {x: 1}"]
    levels += [f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]" for n in range(1, 64)]
    with pytest.raises(RejectedKubeconfigError, match="values"):
        untrusted_kubeconfig.validate("\n".join(levels).encode())


def test_the_name_of_an_unknown_field_is_shown_without_control_characters() -> None:
    assert "\x1b" not in rejected({**config(), "\x1b]0;title\x07" * 50: "x"})
