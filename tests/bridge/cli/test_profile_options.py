"""The operator's files of `bridge run --cluster-profiles`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.base.join_settings import SettingsError
from bridge.cli import profile_options

EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}


def written(folder: Path, content: object) -> Path:
    path = folder / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def providers(**changes: Any) -> dict[str, Any]:
    config = {**EXEC, "args": ["a"], "env": [{"name": "A", "value": "b"}], "installHint": "x"}
    return {"providers": [{"name": "cloud", "execConfig": config | changes}]}


def test_plugins_are_read_without_what_only_people_need(tmp_path: Path) -> None:
    path = written(tmp_path, providers(provideClusterInfo=True))
    (plugin,) = profile_options.read_plugins(path)
    assert plugin.name == "cloud"
    assert plugin.exec == {
        "apiVersion": EXEC["apiVersion"],
        "command": str(tmp_path / "plugin"),
        "args": ["a"],
        "env": [{"name": "A", "value": "b"}],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }


def test_command_without_a_folder_is_looked_up_in_the_path(tmp_path: Path) -> None:
    (plugin,) = profile_options.read_plugins(written(tmp_path, providers(command="cloud-auth")))
    assert plugin.exec["command"] == "cloud-auth"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is not JSON"),
        ({"providers": {}}, "providers is not a list"),
        ({"providers": ["x"]}, "providers[0]: name or execConfig is missing"),
        (providers(command=""), "execConfig.command is missing"),
        (providers(apiVersion="v2"), "execConfig.apiVersion: use"),
        (providers(args="a"), "execConfig.args is not a list"),
        (providers(env={"A": "b"}), "execConfig.env is not a list"),
        (
            {"providers": [*providers()["providers"], *providers()["providers"]]},
            "two providers are named cloud",
        ),
        (
            {
                "providers": [
                    providers()["providers"][0] | {"profileSourcedCLIArgsPolicy": "Append"}
                ]
            },
            "profileSourcedCLIArgsPolicy: only Ignore is supported",
        ),
    ],
)
def test_invalid_providers_are_rejected(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        profile_options.read_plugins(written(tmp_path, content))
    assert message in str(caught.value)


def test_options_are_those_of_a_remote(tmp_path: Path) -> None:
    path = written(tmp_path, "share: 0.5\nhome-name: here\nport: 0\nlabels: {a: b}\n")
    assert profile_options.read_options(path) == {
        "share": 0.5,
        "homeName": "here",
        "port": 0,
        "labels": {"a": "b"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "the YAML is invalid"),
        ("- a", "write a map"),
        ("name: a", "name is not an option that all joins can have"),
        ("kubeconfig: a", "kubeconfig is not an option"),
        ("port: 10250", "port: the joins share one machine"),
        ("share: 7", 'share: "7"'),
        ("home-name: A B", 'home-name: "A B" is not'),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        profile_options.read_options(written(tmp_path, text))
    assert message in str(caught.value)
    assert "spec.options" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="absent: cannot be read: No such file"):
        profile_options.read_plugins(tmp_path / "absent")
