"""Invalid input of `bridge join`: one clear sentence within 15 s, and nothing is created."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import made_by_bridge
from e2e.workload_manifests import web

Change = Callable[[dict[str, Any]], object]


def _user(config: dict[str, Any]) -> dict[str, Any]:
    user: dict[str, Any] = config["users"][0]["user"]
    return user


def _cluster(config: dict[str, Any]) -> dict[str, Any]:
    cluster: dict[str, Any] = config["clusters"][0]["cluster"]
    return cluster


def _use_token(config: dict[str, Any], token: str) -> None:
    _user(config).clear()
    _user(config)["token"] = token


def _wrong_ca(config: dict[str, Any], other: Cluster) -> None:
    theirs = _cluster(yaml.safe_load(other.kubeconfig.read_text()))
    for key in ("certificate-authority", "certificate-authority-data"):
        _cluster(config).pop(key, None)
        if key in theirs:
            _cluster(config)[key] = theirs[key]


def _join(home: Cluster, kubeconfig: Path, *args: str) -> tuple[int, str]:
    """Exit code and standard error of a join."""
    done = bridge_process.run(
        "join", "--kubeconfig", kubeconfig, "--name", "never", "--port", "0", *args, home=home
    )
    return done.returncode, done.stderr


def _closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _cases(home: Cluster, remote: Cluster, silent: int) -> dict[str, tuple[Change, str]]:
    expired = "eyJhbGciOiJSUzI1NiJ9." + base64.urlsafe_b64encode(b'{"exp":1}').decode() + ".eA"
    poor = remote.kubectl("create", "token", "-n", "default", "default").stdout.strip()
    return {
        "refused connection": (
            lambda c: _cluster(c).update(server=f"https://127.0.0.1:{_closed_port()}"),
            "check that the server in the kubeconfig is up",
        ),
        "silent server": (
            lambda c: _cluster(c).update(server=f"https://127.0.0.1:{silent}"),
            "no answer",
        ),
        "unknown host": (
            lambda c: _cluster(c).update(server="https://no-such-host.invalid:6443"),
            "check that the server in the kubeconfig is up",
        ),
        "wrong CA": (lambda c: _wrong_ca(c, home), "certificate is not trusted"),
        "expired credential": (
            lambda c: _use_token(c, expired),
            "does not accept the kubeconfig's credential",
        ),
        "unauthorised credential": (lambda c: _use_token(c, poor), "may not"),
        "unknown context": (lambda c: c.update({"current-context": "nope"}), "nope"),
    }


def test_each_unusable_kubeconfig_gives_one_clear_error(
    home: Cluster, remote: Cluster, tmp_path: Path
) -> None:
    """Unreachable, wrong CA, expired, unauthorised: the error has cause, place and remedy."""
    before = made_by_bridge(home, remote)
    # It accepts connections and never answers.
    silent = socket.create_server(("127.0.0.1", 0))
    cases = _cases(home, remote, silent.getsockname()[1])
    for name, (change, expected) in cases.items():
        config = yaml.safe_load(remote.kubeconfig.read_text())
        change(config)
        path = tmp_path / f"{name.replace(' ', '-')}.yaml"
        path.write_text(yaml.safe_dump(config))
        code, error = _join(home, path)
        errors = [line for line in error.splitlines() if line.startswith("error: ")]
        assert (code, len(errors)) == (1, 1), f"{name}: {error}"
        assert expected in errors[0], name
        assert "Traceback" not in error
        for value in _user(config).values():
            assert str(value) not in error, f"{name}: a credential was printed"
    silent.close()
    assert made_by_bridge(home, remote) <= before


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "no such file"), (b"", "the file is empty"), (b"\xff\xfe\x00", "cannot be read")],
    ids=["missing", "empty", "not text"],
)
def test_file_that_is_no_kubeconfig_is_rejected(
    home: Cluster, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    """Missing, empty and unreadable files are named."""
    path = tmp_path / "remote.yaml"
    if content is not None:
        path.write_bytes(content)
    code, error = _join(home, path)
    assert code == 1
    assert expected in error
    assert str(path) in error


@pytest.mark.core
def test_same_cluster_on_both_sides_is_rejected(home: Cluster) -> None:
    """A cluster cannot be its own remote."""
    before = made_by_bridge(home)
    code, error = _join(home, home.kubeconfig)
    assert code == 1
    assert "is the home cluster itself" in error
    assert made_by_bridge(home) <= before


def test_join_under_another_home_name_ends_with_one_error(bridged: Bridged) -> None:
    """It is rejected after its caches were filled."""
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    assert bridged.bridge.stop() == 0
    for _ in range(5):  # The defect depended on timing.
        refused = bridge_process.run(
            *("join", "--kubeconfig", bridged.bridge.remote.kubeconfig, "--name", bridged.node),
            *("--home-name", "other", "--port", "0"),
            home=bridged.bridge.home,
        )
        assert refused.returncode == 1
        *steps, error = refused.stderr.splitlines()
        assert "join with the previous ones, or remove the pods first" in error
        assert [line for line in steps if not line.startswith(("✓ ", "! ", "… "))] == []
