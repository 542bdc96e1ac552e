"""`bridge join --file`: a file gives options of one join, and is validated before anything runs."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import yaml

from bridge.base.join_settings import JoinSettings
from bridge.cli import join_file
from bridge.cli.commands.join import join
from bridge.cli.options.install_options import INSTALL
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.cli.conftest import Invoke, JoinCalls

#: Parameters of the command that no file can have.
OTHERS = {"ctx", "file", "in_cluster", *(option.parameter for option in INSTALL)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of a file that does not exist yet."""
    return tmp_path / "burst.yaml"


def settings_of(file: Path, content: object, invoke: Invoke, joins: JoinCalls) -> JoinSettings:
    """The settings of the join with this file, which also names the remote."""
    assert isinstance(content, dict)
    file.write_text(yaml.safe_dump({"kubeconfig": "r", **content}))
    done = invoke("join", "-f", str(file))
    assert done.exit_code == 0, done.stderr
    return joins.settings.pop()


def test_every_option_is_a_key() -> None:
    names = {option.parameter for option in join_file.OPTIONS.values()}
    assert names == inspect.signature(join).parameters.keys() - OTHERS


def test_options_of_a_file_equal_those_of_the_command_line(
    file: Path, invoke: Invoke, joins: JoinCalls
) -> None:
    content = {
        "name": "burst",
        "labels": {"team": "orders", "n": 1, "t": True},
        "taints": ["burst:NoExecute"],
        "share": 0.5,
        "port": 0,
        "relay-idle-timeout": 40,
        "unschedulable-timeout": "1m30s",
        "network": "none",
        "verbose": True,
        "log-format": "console",
        "yes": True,
    }
    found = settings_of(file, content, invoke, joins)
    written = (
        "--name=burst",
        "--labels=team=orders,n=1,t=true",
        "--taints=burst:NoExecute",
        "--share=0.5",
        "--port=0",
        "--relay-idle-timeout=40",
        "--unschedulable-timeout=90",
        "--network=none",
        *("--verbose", "--log-format=console", "--yes"),
    )
    assert invoke("join", "--kubeconfig", str(file.parent / "r"), *written).exit_code == 0
    assert joins.settings == [found]
    assert [consent.assume_yes for consent in joins.consents] == [True, True]


def test_command_line_and_environment_win_over_the_file(
    file: Path, invoke: Invoke, joins: JoinCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("{kubeconfig: r, name: of-file, home-name: of-file, port: 1}")
    monkeypatch.setenv("CLUSTER_BRIDGE_JOIN_HOME_NAME", "of-environment")
    monkeypatch.setenv("CLUSTER_BRIDGE_JOIN_FILE", str(file))
    assert invoke("join", "--name", "of-command").exit_code == 0
    (settings,) = joins.settings
    assert (settings.name, settings.home_name, settings.port) == ("of-command", "of-environment", 1)


def test_paths_are_relative_to_the_file(file: Path, invoke: Invoke, joins: JoinCalls) -> None:
    found = settings_of(
        file, {"kubeconfig": "sub/r", "home-kubeconfig": "~/h", "cert-dir": "/c"}, invoke, joins
    )
    assert found.remote == KubeconfigRef(file.parent / "sub/r")
    assert found.home == KubeconfigRef(Path("~/h").expanduser())
    assert found.cert_dir == Path("/c")


@pytest.mark.parametrize("value", ["90s", "1m30s", 90, "90"])
def test_duration_is_a_text_or_seconds(
    file: Path, value: object, invoke: Invoke, joins: JoinCalls
) -> None:
    found = settings_of(file, {"unschedulable-timeout": value}, invoke, joins)
    assert found.unschedulable_timeout == 90.0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[]", " write options of bridge join, each as NAME: VALUE"),
        ("", " write options of bridge join, each as NAME: VALUE"),
        ("a: [canary", " line 1: invalid YAML; check quotes, brackets and indentation"),
        ("name: !!python/object:canary x", " line 1: invalid YAML; check quotes"),
        ("name: 2024-99-99", " line 1: name: the value is invalid"),
        ("name: !!bool canary", " line 1: name: the value is invalid"),
        ("name: !!timestamp canary", " line 1: name: the value is invalid"),
        pytest.param(
            2000 * "[", " invalid YAML; check quotes, brackets and indentation", id="deep"
        ),
        (
            "name: a\nnode_selector: a=b",
            ' line 2: "node_selector" is not an option of bridge join; did you mean node-selector?',
        ),
        ("zzz: 1", ' line 1: "zzz" is not an option of bridge join; bridge join --help lists them'),
        ("file: a", ' line 1: "file" is not an option of bridge join;'),
        ("name: a\nport: 1\nname: b", ' line 3: "name" is there twice; remove one'),
        ("labels:\n  a: b\n  a: c", ' line 3: "a" is there twice; remove one'),
        ("[a]: b", " line 1: a list or a map is not a key; use a text"),
        ("labels:\n  {a: b}: c", " line 2: a list or a map is not a key; use a text"),
        ("port: 65536", ' line 1: port: "65536" is not in range; use 0 to 65535'),
        ("port: true", ' line 1: port: "true" is not a whole number; use 0 to 65535'),
        ("port: 1.5", ' line 1: port: "1.5" is not a whole number; use 0 to 65535'),
        ("relay-idle-timeout: -1", ' line 1: relay-idle-timeout: "-1" is not a duration; use 30s,'),
        (
            "relay-idle-timeout: [1]",
            " line 1: relay-idle-timeout: a list is not a duration; use 30s,",
        ),
        ("relay-idle-timeout: 0s", ' line 1: relay-idle-timeout: "0s" is not long enough; use 1s'),
        (
            "relay-idle-timeout: 1000000h",
            ' line 1: relay-idle-timeout: "1000000h" is not short enough; use 87600h or less',
        ),
        ("metrics: no-thanks", ' line 1: metrics: "no-thanks" is not a valid choice; use auto,'),
        ("verbose: 1", ' line 1: verbose: "1" is not true or false; use true or false'),
        ("labels: [a]", " line 1: labels: a list is not a map; use a map or KEY=VALUE[,"),
        ("taints: {a: b}", " line 1: taints: a map is not a list of texts; use a list or a text"),
        (
            "kubeconfig: ~no-such-user/a",
            ' line 1: kubeconfig: "~no-such-user/a" is not in the home directory of a user',
        ),
        ("context:", ' line 1: context: "null" is not a text; use a text'),
    ],
)
def test_error_names_file_line_key_and_remedy(
    file: Path, content: str, expected: str, invoke: Invoke, joins: JoinCalls
) -> None:
    file.write_text(content)
    done = invoke("join", "--file", str(file))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {file}:{expected}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert "canary" not in done.stderr
    assert joins.settings == []


def test_unreadable_file_is_one_error(file: Path, invoke: Invoke) -> None:
    done = invoke("join", "-f", str(file))
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: {file}: cannot be read: No such file or directory\n",
    )
    file.write_bytes(b"name: \xff")
    done = invoke("join", "-f", str(file))
    assert done.stderr == f"error: {file}: cannot be read: it is not UTF-8\n"


def test_invalid_value_names_the_file_only_if_it_is_from_there(file: Path, invoke: Invoke) -> None:
    file.write_text("{kubeconfig: r, share: 3, cert-dir: d}")
    done = invoke("join", "-f", str(file))
    assert done.exit_code == 2
    assert done.stderr.startswith(f'error: share of {file}: "3" is not a share; use a number')
    done = invoke("join", "-f", str(file), "--share", "4")
    assert done.stderr.startswith('error: --share: "4" is not a share; use a number')
    done = invoke("join", "-f", str(file), "--share", "1", "--serving-certificate", "self-signed")
    assert done.stderr == (
        f"error: cert-dir of {file} and --serving-certificate self-signed exclude each other\n"
    )


# -- the environment ---------------------------------------------------------------------


def test_help_explains_environment_variables_once(invoke: Invoke) -> None:
    assert "CLUSTER_BRIDGE_JOIN_NAME for --name of bridge join" in invoke("--help").stdout
    assert "CLUSTER_BRIDGE" not in invoke("join", "--help").stdout


def test_environment_variables_set_options(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("kubeconfig", "port"):
        monkeypatch.setenv(f"CLUSTER_BRIDGE_JOIN_{key.upper()}", "x")
    assert invoke("join").stderr.startswith('error: --port: "x" is not a whole number')


def test_empty_environment_variable_sets_nothing(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_BRIDGE_JOIN_KUBECONFIG", "")
    assert "--kubeconfig is missing" in invoke("join").stderr
