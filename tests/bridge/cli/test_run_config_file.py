"""`bridge run` and `bridge config`: the file is validated as a whole before any join starts."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bridge.app import run_several_joins
from bridge.base.consent import Consent
from bridge.base.join_settings import Part
from bridge.cli.commands.join import join
from bridge.cli.options.install_options import INSTALL
from bridge.cli.run_config_file import KEYS, ConfigError, read, schema
from bridge.fleet.desired_state import DesiredState, FleetSource
from sync.kube.credentials import KubeconfigRef
from tests.bridge.cli.conftest import Invoke

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "config-file.md"
#: Options of `join` that are not keys of a join: keys of the file itself, and of an installation.
TOP = {"verbose", "log-format", "traces", "in-cluster", *(it.name for it in INSTALL)}


def written(folder: Path, content: object) -> Path:
    """Writes a file with this content; a value that is not a string is written as YAML."""
    path = folder / "bridge.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def example() -> Any:
    """The example of the documentation."""
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return yaml.safe_load(text)


def test_documented_example_is_read_as_documented(tmp_path: Path) -> None:
    (frankfurt, osaka), shown = read(written(tmp_path, example()))
    assert shown.log_format == "json"
    assert (frankfurt.label, osaka.label) == ("frankfurt", "osaka")
    assert frankfurt.settings.remote == KubeconfigRef(tmp_path / "frankfurt.yaml")
    assert frankfurt.settings.home == KubeconfigRef(tmp_path / "home.yaml")
    assert frankfurt.settings.node_selector == {"pool": "burst"}
    assert frankfurt.settings.labels == osaka.settings.labels == {"team": "orders"}
    assert (frankfurt.settings.port, osaka.settings.port) == (10250, 10260)
    assert (frankfurt.settings.network, osaka.settings.network) == ("auto", "none")


def test_every_join_option_is_a_key(tmp_path: Path) -> None:
    names = {name.replace("_", "-") for name in inspect.signature(join).parameters} - {"ctx", "yes"}
    assert names - TOP == KEYS.keys()
    (part,), _ = read(written(tmp_path, {"remotes": [{"kubeconfig": "r"}]}))
    assert part.label == "remotes[0]"
    assert part.settings.port == 10250


def test_schema_is_valid_and_agrees_with_the_reader(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(example(), schema())
    remote = schema()["properties"]["remotes"]["items"]["properties"]
    assert remote.keys() == KEYS.keys() | {"state"}
    assert schema()["properties"]["defaults"]["properties"].keys() < KEYS.keys()
    several_wrong: list[Any] = [
        {},
        {"remotes": []},
        {"remotes": [{"kubeconfig": "r", "prot": 1}]},
        {"remotes": [{"kubeconfig": "r", "port": "x"}]},
        {"remotes": [{"kubeconfig": "r", "port": 70000}]},
        {"remotes": [{"kubeconfig": "r", "network": "round"}]},
        {"remotes": [{"kubeconfig": "r", "state": "gone"}]},
        {"remotes": [{"kubeconfig": "r"}], "defaults": {"name": "a"}},
        {"remotes": [{"kubeconfig": "r"}], "defaults": {"state": "left"}},
    ]
    for wrong in several_wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema())
        with pytest.raises(ConfigError):
            read(written(tmp_path, wrong))


MISSING = "kubeconfig is missing: Kubeconfig of the remote cluster."


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("remote: []", '"remote" is not a key; did you mean remotes?'),
        ("remotes: {a: 1}", "remotes: write a list of joins, at least one"),
        ("[]", "write a map of keys to values"),
        ("remotes: [canary", "line 2, column 1: the YAML is invalid; check "),
        ("remotes: [a]", "remotes[0]: write a map of keys to values"),
        ("remotes: [{name: a}]", f"remotes[0]: {MISSING}"),
        ("remotes: [{zzz: 1}]", 'remotes[0]: "zzz" is not a key; use kubeconfig, '),
        (
            "{remotes: [{kubeconfig: r}], log-format: xml}",
            'log-format: "xml" is not a valid choice; use console or json',
        ),
        ("{remotes: [{kubeconfig: r}], traces: collector}", "traces: write a URL such as "),
        (
            "{remotes: [{kubeconfig: r}], verbose: 1}",
            'verbose: "1" is not true or false; use true or false',
        ),
        (
            "{remotes: [{kubeconfig: r}], defaults: {port: 1}}",
            "defaults.port: each join has its own; write it in remotes",
        ),
        (
            "{remotes: [{kubeconfig: r}], defaults: {state: left}}",
            "defaults.state: each join has its own; write it in remotes",
        ),
        (
            "remotes: [{kubeconfig: r, state: left}]",
            "remotes[0].state: left requires name: the node that leaves",
        ),
        (
            "remotes: [{kubeconfig: r, port: 1}, {kubeconfig: s, port: 1}]",
            "remotes[1].port: remotes[0] has 1 too; each needs its own",
        ),
        (
            "remotes: [{kubeconfig: r, name: a}, {kubeconfig: s, name: a}]",
            "remotes[1].name: remotes[0] has a too; each needs its own",
        ),
    ],
)
def test_invalid_file_error_names_file_and_key(
    tmp_path: Path, content: str, expected: str, invoke: Invoke
) -> None:
    assert_rejected(tmp_path, f"{content}\n", expected, invoke)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("node_selector: a=b", ': "node_selector" is not a key; did you mean node-selector?'),
        ("port: 65536", '.port: "65536" is not in range; use 0 to 65535'),
        ("port: true", '.port: "true" is not a whole number; use 0 to 65535'),
        ("port: 1.5", '.port: "1.5" is not a whole number; use 0 to 65535'),
        ("namespace-linger: -1", '.namespace-linger: "-1" is not a duration; use 30s, 5m or 1h'),
        ("namespace-linger: [1]", ".namespace-linger: a list is not a duration; use 30s, 5m or 1h"),
        ("relay-idle-timeout: 0s", '.relay-idle-timeout: "0s" is not long enough; use 1s or more'),
        (
            "metrics: no-thanks",
            '.metrics: "no-thanks" is not a valid choice; use auto, kubelets, api or none',
        ),
        (
            "anonymous-auth: yes please",
            '.anonymous-auth: "yes please" is not true or false; use true or false',
        ),
        ("labels: [a]", ".labels: a list is not a map; use a map or KEY=VALUE[,"),
        ("taints: {a: b}", ".taints: a map is not a list of texts; use a list or a text"),
        ("context:", '.context: "null" is not a text; use a text'),
        ("name: Big", ': name: "Big" is not a node name; use lower-case'),
        (
            "cert-dir: d\n    serving-certificate: self-signed",
            ": cert-dir and serving-certificate self-signed exclude each other",
        ),
    ],
)
def test_invalid_value_error_names_file_and_key(
    tmp_path: Path, option: str, expected: str, invoke: Invoke
) -> None:
    content = f"remotes:\n  - kubeconfig: r\n    {option}\n"
    assert_rejected(tmp_path, content, f"remotes[0]{expected}", invoke)


def assert_rejected(folder: Path, content: str, expected: str, invoke: Invoke) -> None:
    """The command's error has this text, and quotes nothing else of the file."""
    path = written(folder, content)
    done = invoke("run", "--config", str(path))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {path}: {expected}"), done.stderr
    assert "canary" not in done.stderr


def test_map_or_list_equals_the_text_form(tmp_path: Path) -> None:
    join_of: list[dict[str, object]] = [
        {"labels": {"a": "b", "n": 1, "t": True}, "taints": ["x:NoExecute"], "share": 0.5},
        {"labels": "a=b,n=1,t=true", "taints": "x:NoExecute", "share": "0.5"},
    ]
    found = []
    for more in join_of:
        (part,), _ = read(written(tmp_path, {"remotes": [{"kubeconfig": "r", **more}]}))
        found.append(part.settings)
    assert found[0] == found[1]
    assert found[0].labels == {"a": "b", "n": "1", "t": "true"}


def test_missing_ports_are_assigned_around_explicit_ones(tmp_path: Path) -> None:
    remotes: list[dict[str, object]] = [{"kubeconfig": "r"} for _ in range(4)]
    remotes[1]["port"] = 10250
    remotes[3]["port"] = 0
    parts, _ = read(written(tmp_path, {"remotes": remotes}))
    assert [part.settings.port for part in parts] == [10251, 10250, 10252, 0]


def test_joins_keep_their_ports_when_others_come_and_go(tmp_path: Path) -> None:
    remotes: list[dict[str, object]] = [{"kubeconfig": "r", "name": it} for it in ("b", "a")]
    remotes.append({"kubeconfig": "unnamed"})
    unnamed = str(tmp_path / "unnamed")
    kept = {"a": 10250, "b": 10251, unnamed: 10252}
    parts, _ = read(written(tmp_path, {"remotes": remotes}), kept)
    assert [part.settings.port for part in parts] == [10251, 10250, 10252]
    remotes[0] = {"kubeconfig": "r", "name": "new"}
    parts, _ = read(written(tmp_path, {"remotes": remotes}), kept)
    assert [part.settings.port for part in parts] == [10251, 10250, 10252]
    remotes[0] = {"kubeconfig": "r", "name": "new", "port": 10252}
    parts, _ = read(written(tmp_path, {"remotes": remotes}), kept)
    assert [part.settings.port for part in parts] == [10252, 10250, 10251]


def test_join_that_leaves_takes_no_port(tmp_path: Path) -> None:
    remotes = [
        {"kubeconfig": "r", "name": "a", "state": "left"},
        {"kubeconfig": "r", "name": "b", "state": "joined"},
    ]
    parts, _ = read(written(tmp_path, {"remotes": remotes}))
    assert [part.state for part in parts] == ["left", "joined"]
    assert parts[1].settings.port == 10250


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("remotes:\n- kubeconfig: r\n- kubeconfig: s\n  prot: 1\n", 4),
        ("remotes:\n- kubeconfig: r\n\n- name: a\n", 4),
        ("remotes:\n- kubeconfig: r\n  # comment\n  port: x\n", 4),
        ("log-format: json\nremotes: []\n", 2),
        ("remotes:\n- kubeconfig: r\ndefaults:\n  labels:\n  - a\n", 2),
        ("verbose: 1\nremotes:\n- kubeconfig: r\n", 1),
        ("- a\n", 1),
    ],
)
def test_error_ends_with_the_line(tmp_path: Path, content: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        read(written(tmp_path, content))
    assert str(caught.value).endswith(f" (line {line})")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    remotes = [{"kubeconfig": "sub/r"}, {"kubeconfig": "/etc/r"}, {"kubeconfig": "~/r"}]
    parts, _ = read(written(tmp_path, {"remotes": remotes}))
    found = [part.settings.remote.path for part in parts]
    assert found == [tmp_path / "sub/r", Path("/etc/r"), Path("~/r").expanduser()]


# -- the command -------------------------------------------------------------------------


def test_run_starts_the_joins_of_the_file(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Part] = []

    consents: list[Consent] = []

    async def run(source: FleetSource, *, consent: Consent, **_: object) -> None:
        state = await anext(source.states())
        assert isinstance(state, DesiredState)
        ran.extend(state.parts)
        consents.append(consent)

    monkeypatch.setattr(run_several_joins, "run_joins", run)
    path = written(tmp_path, {"remotes": [{"kubeconfig": "r", "name": "a"}]})
    done = invoke("run", "--config", str(path))
    assert (done.exit_code, done.stdout) == (0, "")
    assert [part.label for part in ran] == ["a"]
    invoke("run", "--config", str(path), "--yes")
    assert [it.assume_yes for it in consents] == [False, True]
    ran.clear()
    done = invoke("run", "--config", str(path), "--check")
    assert done.exit_code == 0
    assert "1 join: a" in done.stderr
    assert ran == []


def test_config_schema_prints_the_schema(invoke: Invoke) -> None:
    for args in (("config", "schema"), ("run", "--schema")):
        done = invoke(*args)
        assert done.exit_code == 0
        assert json.loads(done.stdout) == json.loads(json.dumps(schema()))


def test_config_validate_lists_joins_or_fails(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("config", "validate", str(written(tmp_path, example())))
    assert done.exit_code == 0
    assert "2 joins: frankfurt, osaka" in done.stderr
    path = written(tmp_path, {"remotes": [{"kubeconfig": "r", "port": "x"}]})
    done = invoke("config", "validate", str(path))
    assert done.exit_code == 2
    assert f'{path}: remotes[0].port: "x" is not a whole number' in done.stderr


def test_duration_is_a_text_or_seconds(tmp_path: Path) -> None:
    for value in ("90s", "1m30s", 90, "90"):
        remote = {"kubeconfig": "r", "unschedulable-timeout": value}
        (part,), _ = read(written(tmp_path, {"remotes": [remote]}))
        assert part.settings.unschedulable_timeout == 90.0


def test_run_without_config_fails_with_a_hint(invoke: Invoke, tmp_path: Path) -> None:
    assert "--config is missing" in invoke("run").stderr
    done = invoke("run", "--config", str(tmp_path / "absent"))
    assert done.exit_code == 2
    assert (
        done.stderr == f"error: {tmp_path / 'absent'}: cannot be read: No such file or directory\n"
    )


# -- the environment ---------------------------------------------------------------------


def test_environment_variable_sets_an_option(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_BRIDGE_RUN_CONFIG", str(tmp_path / "absent"))
    assert str(tmp_path / "absent") in invoke("run").stderr
    assert str(tmp_path / "other") in invoke("run", "--config", str(tmp_path / "other")).stderr
    monkeypatch.setenv("CLUSTER_BRIDGE_RUN_CONFIG", "")
    assert "--config is missing" in invoke("run").stderr


def test_help_explains_environment_variables_once(invoke: Invoke) -> None:
    assert "CLUSTER_BRIDGE_JOIN_NAME for --name of bridge join" in invoke("--help").stdout
    assert "CLUSTER_BRIDGE" not in invoke("join", "--help").stdout


def test_environment_variables_set_join_options(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("kubeconfig", "port"):
        monkeypatch.setenv(f"CLUSTER_BRIDGE_JOIN_{key.upper()}", "x")
    assert invoke("join").stderr.startswith('error: --port: "x" is not a whole number')
