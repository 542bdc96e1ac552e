"""Answers for people and for programs."""

from __future__ import annotations

import json

import pytest
import yaml

from bridge.base.output import Output, columns, show
from bridge.base.printable_text import json_text

DATA = {"nodes": [{"name": "größe", "ready": True, "pods": 3, "since": None}]}


def test_programs_get_all_data_back(capsys: pytest.CaptureFixture[str]) -> None:
    show(DATA, Output.JSON, lambda: "not this")
    assert json.loads(capsys.readouterr().out) == DATA
    show(DATA, Output.YAML, lambda: "not this")
    assert yaml.safe_load(capsys.readouterr().out) == DATA


def test_people_get_one_end_of_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(DATA, Output.TABLE, lambda: "a line\n\n")
    assert capsys.readouterr().out == "a line\n"


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert columns(["name", "ready"], [["a", "True"], ["a-long-name", ""]]).splitlines() == [
        "NAME          READY",
        "a             True",
        "a-long-name",
    ]


def test_control_characters_do_not_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"message": "a\x1b[2J\x9b1m\u202eb\x07"}
    show(data, Output.TABLE, lambda: columns(["message"], [[data["message"]], ["forged\nrow"]]))
    shown = capsys.readouterr().out
    assert all(it.isprintable() for it in shown.splitlines())
    assert "\\x1b[2J" in shown
    assert len(shown.splitlines()) == 3
    show(data, Output.JSON, lambda: "")
    shown = capsys.readouterr().out
    assert all(it.isprintable() for it in shown.splitlines())
    assert json.loads(shown) == data


@pytest.mark.parametrize("text", ["\ud800 \U0001f600 \U000e0001 \x7f\t", "größe — ✓"])
def test_json_is_the_same_value_after_control_characters_are_escaped(text: str) -> None:
    encoded = json_text(json.dumps(text, ensure_ascii=False))
    assert encoded.isprintable()
    assert json.loads(encoded) == text
