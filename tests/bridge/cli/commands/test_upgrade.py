"""`bridge upgrade`: the installation's options, and those that are given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.commands import install, upgrade
from bridge.cli.commands.install import InstallRequest
from bridge.install.installed_options import InstalledOptions
from tests.bridge.cli.conftest import Invoke
from tests.bridge.install.kubeconfigs import config, write

INSTALLED = InstalledOptions(
    namespace="infra",
    image="registry.example/bridge:1",
    replicas=3,
    arguments=["--port=10251", "--network=relay", "--share=0.5", "--daemonsets=run"],
    bound_namespaces=["shop"],
    all_namespaces=False,
    offload_webhook=True,
    relay_from=["shop"],
    kubeconfig="stored",
)


@dataclass
class Upgrades:
    """The installation, and the requests to apply another installation."""

    installed: InstalledOptions = INSTALLED
    nodes: list[str] = field(default_factory=list)
    requests: list[tuple[InstallRequest, str | None]] = field(default_factory=list)

    async def find(self, _: object, node: str) -> InstalledOptions:
        self.nodes.append(node)
        return self.installed

    def apply(
        self,
        wanted: InstallRequest,
        *,
        assume_yes: bool,
        stored_kubeconfig: str | None,
        selects_identity: bool,
    ) -> None:
        assert not assume_yes
        assert not selects_identity, "an upgrade asks nothing that the installation has decided"
        self.requests.append((wanted, stored_kubeconfig))


@pytest.fixture
def upgrades(monkeypatch: pytest.MonkeyPatch) -> Upgrades:
    found = Upgrades()
    monkeypatch.setattr(upgrade, "read_installation", found.find)
    monkeypatch.setattr(install, "apply_request", found.apply)
    return found


def requested(invoke: Invoke, upgrades: Upgrades, *args: str) -> tuple[InstallRequest, str | None]:
    done = invoke("upgrade", *args)
    assert done.exit_code == 0, done.stderr
    return upgrades.requests[-1]


def test_options_that_are_not_given_stay(invoke: Invoke, upgrades: Upgrades) -> None:
    made, kubeconfig = requested(invoke, upgrades, "burst", "--image", "registry.example/bridge:2")
    assert (made.settings.name, kubeconfig) == ("burst", "stored")
    assert made.image == "registry.example/bridge:2"
    assert (made.settings.port, made.settings.network) == (10251, "relay")
    assert made.settings.daemonsets == "run"
    assert made.arguments == ["--share=0.5", "--daemonsets=run"]
    assert (made.namespace, made.replicas, made.offload_webhook) == ("infra", 3, True)
    assert (made.bind, made.relay_from) == (("shop",), ("shop",))
    assert (made.dry_run, made.wait, made.timeout) == (False, True, 180.0)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--share", "0.8"), {"arguments": ["--share=0.8", "--daemonsets=run"]}),
        (("--verbose",), {"arguments": ["--share=0.5", "--daemonsets=run", "--verbose"]}),
        (("--replicas", "1"), {"replicas": 1}),
        (("--bind", "blog"), {"bind": ("blog",), "all_namespaces": False}),
        (("--all-namespaces",), {"bind": (), "all_namespaces": True}),
        (("--dry-run",), {"dry_run": True}),
    ],
)
def test_given_options_replace_those_of_the_installation(
    invoke: Invoke, upgrades: Upgrades, args: tuple[str, ...], expected: dict[str, Any]
) -> None:
    made, _ = requested(invoke, upgrades, "burst", *args)
    assert {name: getattr(made, name) for name in expected} == expected


def test_kubeconfig_replaces_the_stored_one_and_names_the_node(
    invoke: Invoke, upgrades: Upgrades, tmp_path: Path
) -> None:
    path = write(tmp_path / "remote.yaml", config())
    made, kubeconfig = requested(invoke, upgrades, "--kubeconfig", str(path))
    assert (made.settings.remote.path, kubeconfig) == (path, None)
    assert upgrades.nodes == ["far"]


def test_stored_kubeconfig_that_is_missing_is_an_error(invoke: Invoke, upgrades: Upgrades) -> None:
    upgrades.installed = replace(INSTALLED, kubeconfig=None)
    done = invoke("upgrade", "burst")
    assert done.exit_code == 1
    assert "name one with --kubeconfig" in done.stderr
    assert upgrades.requests == []


def test_argument_of_another_version_is_an_error(invoke: Invoke, upgrades: Upgrades) -> None:
    upgrades.installed = replace(INSTALLED, arguments=["--frobnicate=1"])
    done = invoke("upgrade", "burst")
    assert done.exit_code == 1
    assert "has the argument --frobnicate, which this version does not know" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "NODE is missing"),
        (("burst", "--context", "x"), "--context requires --kubeconfig"),
        (("burst", "--address", "192.0.2.1"), "no such option: --address"),
    ],
)
def test_invalid_options_exit_with_2(
    invoke: Invoke, upgrades: Upgrades, args: tuple[str, ...], message: str
) -> None:
    done = invoke("upgrade", *args)
    assert done.exit_code == 2
    assert message in done.stderr
    assert upgrades.requests == []
