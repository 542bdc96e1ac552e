"""The log: text for terminals, JSON for programs, and outputs that block."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from bridge.base.join_settings import LogFormat
from bridge.observability import log_output
from bridge.observability.log_output import (
    AUDIT,
    CHANGES,
    STEPS,
    TEXT_MAX,
    ConsoleFormatter,
    JsonFormatter,
    NonBlockingHandler,
    configure_logging,
)
from sync.cache.store import Key
from sync.kube.api_errors import Unreachable
from sync.runtime.log_fields import key_fields, name_fields
from tests.bridge.running_join import running_join
from tests.bridge.two_clusters import Clusters
from tests.sync.engine_harness import NODE as JOINED
from tests.sync.engine_harness import EngineHarness

NAMES = ("", CHANGES, AUDIT, STEPS, "asyncio", "sync.cache.informer")
#: Logging state that a process sets up only once.
SWITCHES = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")


class Shown:
    """Records the text that is written to a file."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def getvalue(self) -> str:
        """All text."""
        return os.pread(self._file.fileno(), 100_000, 0).decode()


@contextmanager
def terminal(
    monkeypatch: pytest.MonkeyPatch, *, verbose: bool = False, log_format: LogFormat = "console"
) -> Iterator[Shown]:
    """Configures logging to write to the yielded file until the block ends."""
    loggers = [logging.getLogger(name) for name in NAMES]
    handlers, levels = logging.root.handlers[:], [logger.level for logger in loggers]
    for switch in SWITCHES:
        monkeypatch.setattr(logging, switch, getattr(logging, switch))
    try:
        with tempfile.TemporaryFile("w+") as file:
            monkeypatch.setattr(sys, "stderr", file)
            configure_logging(verbose=verbose, log_format=log_format)
            yield Shown(file)
    finally:
        logging.root.handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def without_clock(shown: Shown) -> list[str]:
    """The lines without their time of day."""
    lines = shown.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines), lines
    return [line[9:] for line in lines]


def log_one_of_each() -> None:
    """Logs one record of each kind."""
    logging.getLogger(CHANGES).info("pod %s: %s", "default/web", "Running")
    logging.getLogger(AUDIT).info("pod %s: %s", "default/web", "exec by alice")
    logging.getLogger(CHANGES).debug("how it came")
    logging.getLogger("sync.cache.informer").debug("a detail")
    logging.getLogger("sync.cache.informer").info("a step")
    logging.getLogger("sync.cache.informer").warning("a trouble")
    logging.getLogger("asyncio").debug("the loop")


def test_changes_and_warnings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        log_one_of_each()
        lines = without_clock(shown)
    assert lines == [
        "pod default/web: Running",
        "pod default/web: exec by alice",
        "warning: a trouble",
    ]


def test_verbose_shows_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, verbose=True) as shown:
        log_one_of_each()
        lines = without_clock(shown)
    assert lines == [
        "pod default/web: Running",
        "pod default/web: exec by alice",
        "debug: a detail",
        "info: a step",
        "warning: a trouble",
    ]


def test_unexpected_exception_is_logged_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            logging.getLogger("sync.runtime.controller").exception("pods: %s failed", "default/web")
        first, *rest = shown.getvalue().splitlines()
    assert first[9:] == "error: pods: default/web failed"
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1].startswith("ZeroDivisionError: ")


def test_configuration_replaces_earlier_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        configure_logging(verbose=False)
        logging.getLogger(CHANGES).info("once")
        lines = without_clock(shown)
    assert lines == ["once"]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def logger_to(file: int) -> logging.Logger:
    """A separate logger that writes to the file."""
    logger = logging.Logger(CHANGES)
    logger.addHandler(NonBlockingHandler(file, ConsoleFormatter()))
    return logger


def test_lines_are_dropped_and_counted_while_the_pipe_is_full(pipe: tuple[int, int]) -> None:
    """A blocking write would stop the event loop, and the node's Lease would expire."""
    reader, writer = pipe
    logger = logger_to(writer)
    for number in range(20_000):
        logger.info("pod default/web-%d: Running", number)
    first = os.read(reader, 1_000_000).decode().splitlines()
    assert 500 < len(first) < 20_000
    logger.info("the next one")
    lost, then = os.read(reader, 1_000_000).decode().splitlines()
    number = 20_000 - len(first)
    assert lost.endswith(
        f" warning: {number} lines were dropped: stderr was not read, or could not be written"
    )
    assert then.endswith(" the next one")


@pytest.mark.parametrize("formatter", [ConsoleFormatter(), JsonFormatter()])
def test_long_text_of_a_message_and_its_fields_is_cut(formatter: logging.Formatter) -> None:
    text = "\u202e" * 1_000_000
    record = logging.LogRecord(CHANGES, logging.INFO, "", 0, "pod %s", (text,), None)
    vars(record).update(name_fields("Pod", text, namespace="ns"))
    line = formatter.format(record)
    assert len(line) < 6 * 3 * TEXT_MAX
    assert "... (1000004 characters)" in line


def test_line_longer_than_the_pipe_is_cut(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "TEXT_MAX", 1_000_000)
    reader, writer = pipe
    logger = logger_to(writer)
    logger.info("x" * 1_000_000)
    assert 4096 < len(os.read(reader, 1_000_000)) < 1_000_000
    logger.info("the next one")
    assert os.read(reader, 1_000_000).startswith(b"\n")


def test_closed_pipe_raises_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger_to(writer).info("a line")
    os.close(writer)


def test_lines_are_dropped_and_counted_while_the_disk_is_full(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = os.open("/dev/full", os.O_WRONLY)
    logger = logger_to(file)
    for _ in range(3):
        logger.info("a line")
    with tempfile.TemporaryFile() as roomy:
        os.dup2(roomy.fileno(), file)
        logger.info("the next one")
        os.close(file)
        roomy.seek(0)
        lost, then = roomy.read().decode().splitlines()
    assert lost.endswith(
        " warning: 3 lines were dropped: stderr was not read, or could not be written"
    )
    assert then.endswith(" the next one")
    assert capsys.readouterr().err == ""


def objects(shown: Shown) -> list[dict[str, Any]]:
    """The lines, each of which is a JSON object."""
    return [json.loads(line) for line in shown.getvalue().splitlines()]


def test_json_line_has_the_same_text_and_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, log_format="json") as shown:
        fields = name_fields("Pod", "web", namespace="default", uid="u1", cluster="remote")
        logging.getLogger(CHANGES).info("pod %s: %s", "default/web", "Run\nning", extra=fields)
        logging.getLogger("sync.cache.informer").info("a step")
        logging.getLogger("sync.cache.informer").warning("a trouble")
        first, second = objects(shown)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("ts"))
    assert first == {
        "level": "info",
        "logger": CHANGES,
        "msg": "pod default/web: Run\nning",
        "cluster": "remote",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "u1",
    }
    assert second.keys() == {"ts", "level", "logger", "msg"}
    assert (second["level"], second["msg"]) == ("warning", "a trouble")


def test_json_line_has_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, log_format="json") as shown:
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            logging.getLogger("sync.runtime.controller").exception("it failed")
        (line,) = objects(shown)
    assert line["trace"].startswith("Traceback (most recent call last):\n")


def test_number_of_dropped_lines_is_logged_as_json(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    logger = logging.Logger(CHANGES)
    logger.addHandler(NonBlockingHandler(writer, JsonFormatter()))
    for number in range(20_000):
        logger.info("pod default/web-%d: Running", number)
    read = os.read(reader, 1_000_000).decode().splitlines()
    logger.info("the next one")
    lost, then = map(json.loads, os.read(reader, 1_000_000).decode().splitlines())
    assert lost["msg"].startswith(f"{20_000 - len(read)} lines were dropped")
    assert lost["level"] == "warning"
    assert then["msg"] == "the next one"


@pytest.mark.usefixtures("soon")
async def test_lines_of_a_join_have_object_fields(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = EngineHarness(two.home, two.remote)
    with terminal(monkeypatch, log_format="json") as shown:
        async with running_join(two):
            uid = harness.pod("web")["metadata"]["uid"]
            await two.remote.until(lambda: harness.remote_pod("web"))
            harness.report_running("web")
            await two.home.until(lambda: harness.status("web").get("phase") == "Running")
            two.remote.break_watches()
            await two.remote.until(two.remote.open_watches)
        lines = objects(shown)
    assert {line["node"] for line in lines} == {JOINED}
    pod = {"kind": "Pod", "namespace": "default", "name": "web", "uid": uid, "node": JOINED}
    (made,) = [it for it in lines if "created in the remote" in it["msg"]]
    assert made.items() >= {**pod, "cluster": "remote", "level": "info"}.items()
    (runs,) = [it for it in lines if "Running in the remote" in it["msg"]]
    assert runs.items() >= pod.items()
    (node,) = [it for it in lines if it["msg"].startswith(f"node {JOINED}: Ready")]
    assert node.items() >= {"kind": "Node", "name": JOINED, "cluster": "home"}.items()
    broken = [it for it in lines if it["msg"].startswith("cannot watch")]
    assert broken
    assert {(it["cluster"], it["level"]) for it in broken} == {("remote", "warning")}


def test_failed_request_has_its_cluster() -> None:
    error = Unreachable("refused", side="home", what="GET /x")
    assert key_fields("Pod", Key("default", "web"), error) == name_fields(
        "Pod", "web", namespace="default", cluster="home"
    )
    assert key_fields("Namespace", "default") == name_fields("Namespace", "default")


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_control_characters_are_escaped(
    monkeypatch: pytest.MonkeyPatch, log_format: LogFormat
) -> None:
    """A newline in a message does not forge a line."""
    with terminal(monkeypatch, log_format=log_format) as shown:
        logging.getLogger("a").warning("%s", "\x1b[2J\x9b\u202e\n12:00:00 pod a/b: forged")
        (line,) = shown.getvalue().splitlines()
    assert line.isprintable()
