"""Errors, exit codes and signals of commands, and the help of the whole command line."""

from __future__ import annotations

import asyncio
import errno
import importlib
import importlib.metadata
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from bridge import cli
from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat, Waiting
from bridge.certificates.tls_key_pair import CertificateError
from bridge.cli import run_until_signal
from bridge.cli.command_table import app
from bridge.election.elector import NodeLeft
from bridge.kubelet.server import ListenError
from bridge.node.node_controller import NodeTaken
from sync.kube.api_errors import Forbidden, KubeError, Unreachable
from sync.namespaces.remote_namespace_creation import NamespaceMappingError
from tests.bridge.cli.conftest import Invoke
from tests.child_process import child_process

PROJECT = Path(__file__).parents[3] / "pyproject.toml"

FOR_PEOPLE: list[Exception] = [
    CertificateError("what, where, what next"),
    ListenError("what, where, what next"),
    NamespaceMappingError("what, where, what next"),
    NodeLeft("what, where, what next"),
    NodeTaken("what, where, what next"),
    PreflightError("what, where, what next"),
    Unreachable("what, where, what next", side="home"),
    Forbidden("what, where, what next", side="remote", what="GET /x", code=403),
]


def raising(error: BaseException) -> None:
    """Runs a command that raises the error."""

    async def command(_: asyncio.Event) -> None:
        raise error

    run_until_signal.run(command)


# -- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", FOR_PEOPLE, ids=lambda error: type(error).__name__)
def test_command_error_is_one_line_and_exit_code_1(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        raising(error)
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize("error", FOR_PEOPLE, ids=lambda error: type(error).__name__)
def test_command_error_in_a_group_is_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        raising(ExceptionGroup("outer", [ExceptionGroup("inner", [error]), error]))
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {error}\n"


def test_message_of_several_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    """For example the message of a webhook, which an API server passes on unchanged."""
    with pytest.raises(SystemExit):
        raising(KubeError("denied:\n  no pods here\r\n", side="remote"))
    assert capsys.readouterr().err == "error: remote: denied: no pods here\n"


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("a defect"),
        ExceptionGroup("parts", [ZeroDivisionError("a defect")]),
        ExceptionGroup("parts", [ZeroDivisionError("a defect"), ListenError("for people")]),
    ],
    ids=["alone", "in a group", "beside an error for people"],
)
def test_unexpected_exception_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        raising(error)
    assert caught.value is error


# -- hangup ------------------------------------------------------------------------------

#: A command in its own process that cleans up for a moment.
_CLEANS_UP = """
import asyncio, sys
from bridge.cli import run_until_signal

async def command(stop):
    print("started", flush=True)
    try:
        await asyncio.wait_for(stop.wait(), 1.0)
    except TimeoutError:
        print("not stopped", flush=True)
        return
    print("stopping", flush=True)
    await asyncio.sleep(0.3)
    print("cleaned up", flush=True)

run_until_signal.run(command, exit_within=5.0)
"""


def hung_up(*, ignored: bool) -> tuple[int, str]:
    """The exit code and output of the command after two SIGHUPs, from a shell and its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    with child_process([sys.executable, "-c", _CLEANS_UP], stdout=subprocess.PIPE) as process:
        signal.signal(signal.SIGHUP, before)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGHUP)
        if not ignored:
            assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGHUP)
        output = process.stdout.read()
        return process.wait(), output


def test_sighup_lets_the_command_clean_up() -> None:
    assert hung_up(ignored=False) == (0, "cleaned up\n")


def test_sighup_is_ignored_under_nohup() -> None:
    assert hung_up(ignored=True) == (0, "not stopped\n")


class Full(io.StringIO):
    """A file on a full disk."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_each_kind_of_line_has_its_mark(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("a step", Caveat("a caveat"), Waiting("a wait")):
        run_until_signal.report_line(line)
    assert capsys.readouterr().err.splitlines() == ["✓ a step", "! a caveat", "… a wait"]


def test_kinds_of_lines_are_logged_at_their_level() -> None:
    logged = list[tuple[int, str]]()
    run_until_signal.redirect_reports(lambda level, text: logged.append((level, text)))
    try:
        for line in ("a step", Caveat("a caveat"), Waiting("a wait")):
            run_until_signal.report_line(line)
    finally:
        run_until_signal.redirect_reports(None)
    assert logged == [
        (logging.INFO, "a step"),
        (logging.WARNING, "a caveat"),
        (logging.INFO, "a wait"),
    ]


def test_full_disk_on_stderr_does_not_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of progress is lost; the operation continues."""
    monkeypatch.setattr(sys, "stderr", Full())

    async def command(_: asyncio.Event) -> int:
        run_until_signal.report_line("home: node remote is registered")
        return 7

    assert run_until_signal.run(command) == 7
    with pytest.raises(SystemExit) as ended:
        raising(KubeError("denied", side="remote"))
    assert ended.value.code == 1


# -- signals -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda it: it.name)
def test_first_signal_sets_stop(number: signal.Signals) -> None:
    async def command(stop: asyncio.Event) -> str:
        os.kill(os.getpid(), number)
        await stop.wait()
        return "stopped"

    assert run_until_signal.run(command) == "stopped"


def test_second_signal_cancels_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    async def command(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    with pytest.raises(SystemExit) as ended:
        run_until_signal.run(command)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: interrupted before it was done\n"


def test_first_signal_cancels_a_command_without_stop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def command(_: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    with pytest.raises(SystemExit) as ended:
        run_until_signal.run(command, stops=False, after_interruption="run it again")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: interrupted before it was done; run it again\n"


def test_question_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop handles the signals, and is blocked by the question."""

    def confirm(*_: object, **__: object) -> bool:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise typer.Abort from None
        return True

    async def command(_: asyncio.Event) -> bool:
        return run_until_signal.confirm("Really?")

    monkeypatch.setattr(typer, "confirm", confirm)
    with pytest.raises(typer.Abort):
        run_until_signal.run(command, stops=False)


@pytest.mark.parametrize("answer", [True, False])
def test_signal_handlers_are_restored_after_a_question(
    monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: answer)

    async def command(stop: asyncio.Event) -> bool:
        confirmed = run_until_signal.confirm("Really?")
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        return confirmed

    assert run_until_signal.run(command) is answer


def test_asyncio_loop_without_uvloop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def command(_: asyncio.Event) -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run_until_signal.run(command).startswith("asyncio")


# -- the command line --------------------------------------------------------------------

COMMANDS = {
    *("join", "install", "upgrade", "uninstall", "render", "leave", "prune", "rbac"),
    *(
        "check",
        "status",
        "dashboard",
        "explain",
        "version",
        "volume",
        "bug-report",
    ),
    *("offload", "unoffload", "webhook"),
}
#: The program of the relay agents, which has no documentation.
HIDDEN = {"relay-pod"}


def commands() -> dict[str, Any]:
    """The commands, as objects of typer's click."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def test_help_lists_each_command(invoke: Invoke) -> None:
    assert set(commands()) == COMMANDS | HIDDEN
    for option in ("--help", "-h"):
        done = invoke(option)
        assert done.exit_code == 0
        for name in COMMANDS:
            assert re.search(rf"\b{name}\s+[A-Z]\w+ ", done.stdout), name
        assert not any(name in done.stdout for name in HIDDEN)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_describes_each_option(invoke: Invoke, name: str) -> None:
    done = invoke(name, "--help")
    assert done.exit_code == 0
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stdout).split())
    for parameter in commands()[name].params:
        assert parameter.help, parameter.name
        assert parameter.help.endswith("."), parameter.name
        for option in parameter.opts if parameter.param_type_name == "option" else ():
            assert option in text
        assert parameter.help.split(";")[0].split(".")[0] in text


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["join"], "--kubeconfig"),
        (["leave"], "NODE is missing"),
        (["prune"], "--kubeconfig"),
        (["join", "--kubeconfig", "x", "--port", "65536"], "--port"),
        (["join", "--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
    ],
    ids=[
        "join needs a remote",
        "leave needs a node",
        "prune needs a remote",
        "no such port",
        "no option",
        "no command",
    ],
)
def test_invalid_options_exit_with_2(invoke: Invoke, args: list[str], named: str) -> None:
    done = invoke(*args)
    assert done.exit_code == 2
    assert named in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        *("status {}", "dashboard {}", "check {}", "bug-report {}", "leave {} --yes"),
        *("upgrade {}", "offload {}", "unoffload {}", "volume copy {}/a b/c"),
        *("volume copy a/b c/{}", "volume copy a/b c/d --to {}", "explain pod/{}"),
        *("explain pod {}/a", "explain pvc/a -n {}", "explain pod/a --node {}"),
    ],
)
@pytest.mark.parametrize("name", [b"\xff", b"a?b"], ids=["not UTF-8", "invalid"])
def test_name_that_no_object_can_have_exits_with_2(invoke: Invoke, words: str, name: bytes) -> None:
    text = os.fsdecode(name)
    done = invoke(*words.format(text).split())
    assert done.exit_code == 2
    assert re.search(" is not an? | is not the name", done.stderr)


@pytest.mark.parametrize("words", ["link show", "fdb", "vlan", "mdb", "monitor", "vni", "mst"])
def test_iproute2_command_fails_with_a_hint(invoke: Invoke, words: str) -> None:
    done = invoke(*words.split())
    assert done.exit_code == 2
    assert f"run /sbin/bridge {words.split(maxsplit=1)[0]} instead" in done.stderr


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (
            ("join", "--kubeconfig", "x", "--port", "5m"),
            '--port: "5m" is not a whole number;',
        ),
        (("join", "--network", "wide", "--kubeconfig", "x"), "use auto, flat, relay or none"),
        (("leave", "x", "--timeout", "5x"), '--timeout: "5x" is not a duration; use 30s, 5m or 1h'),
        (("leave", "x", "--timeout", "0"), '--timeout: "0" is not long enough; use 1s or more'),
        (
            ("leave", "x", "--timeout", "87601h"),
            '--timeout: "87601h" is not short enough; use 87600h or less',
        ),
        (("leave", "x", "--timeout", "9" * 400), '9" is not short enough; use 87600h or less'),
        (
            ("leave", "x", "--timeout", f"1h{'9' * 400}m"),
            '9m" is not short enough; use 87600h or less',
        ),
    ],
)
def test_invalid_value_is_quoted_with_alternatives(
    invoke: Invoke, args: tuple[str, ...], error: str
) -> None:
    done = invoke(*args)
    assert done.exit_code == 2
    first, usage = done.stderr.splitlines()
    assert error in first
    assert usage == f"See 'root {args[0]} --help' for usage."


def test_usage_error_is_json_with_output_json(invoke: Invoke) -> None:
    for args in (("status", "-o", "json", "--nonsense"), ("check", "--output=json", "--wait", "x")):
        done = invoke(*args)
        assert done.exit_code == 2
        error = json.loads(done.stdout)["error"]
        assert error["exitCode"] == 2
        assert done.stderr.startswith(f"error: {error['message']}\n")


def test_version_option_prints_the_version(invoke: Invoke) -> None:
    assert invoke("--version").stdout.startswith("cluster-bridge ")


def test_version_command_prints_the_version(invoke: Invoke) -> None:
    declared = importlib.metadata.version("cluster-bridge")
    done = invoke("version", "--client")
    assert (done.exit_code, done.stdout) == (0, f"{declared}\n")


def test_entry_points_for_shell_and_kubectl() -> None:
    scripts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
    assert set(scripts) == {"bridge", "kubectl-bridge"}
    for script in scripts.values():
        module, _, function = script.partition(":")
        assert getattr(importlib.import_module(module), function) is cli.main


def test_command_table_imports_nothing_that_only_a_running_command_needs() -> None:
    heavy = ["aiohttp", "kubernetes", "yaml", "cryptography", "orjson", "uvloop"]
    script = (
        "import sys, bridge.cli.command_table; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
