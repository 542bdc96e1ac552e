"""Command output as text, JSON, YAML and templates."""

from __future__ import annotations

import json

import pytest
import yaml

from bridge.base.command_output import Output, format_table, print_result
from bridge.base.printable_text import escape_json

DATA = {"nodes": [{"name": "größe", "ready": True, "pods": 3, "since": None}]}


def test_json_and_yaml_round_trip(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(DATA, Output.JSON, lambda: "not this")
    assert json.loads(capsys.readouterr().out) == DATA
    print_result(DATA, Output.YAML, lambda: "not this")
    assert yaml.safe_load(capsys.readouterr().out) == DATA


def test_text_ends_with_one_newline(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(DATA, Output.TABLE, lambda: "a line\n\n")
    assert capsys.readouterr().out == "a line\n"


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert format_table(["name", "ready"], [["a", "True"], ["a-long-name", ""]]).splitlines() == [
        "NAME          READY",
        "a             True",
        "a-long-name",
    ]


def test_control_characters_do_not_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    data = {
        "message": "a\x1b[2J\x9b1m\u202eb\x07",
        "reordered": "a\u202eb",
        "line": "a\x85b\u2028c",
    }
    print_result(
        data, Output.TABLE, lambda: format_table(["message"], [[data["message"]], ["forged\nrow"]])
    )
    shown = capsys.readouterr().out
    assert all(it.isprintable() for it in shown.splitlines())
    assert "\\x1b[2J" in shown
    assert len(shown.splitlines()) == 3
    print_result(data, Output.JSON, lambda: "")
    shown = capsys.readouterr().out
    assert all(map(str.isprintable, shown.split("\n")))
    assert json.loads(shown) == data
    print_result(data, Output.YAML, lambda: "")
    shown = capsys.readouterr().out
    assert all(map(str.isprintable, shown.split("\n")))
    assert yaml.safe_load(shown) == data


@pytest.mark.parametrize("text", ["\ud800 \U0001f600 \U000e0001 \x7f\t", "größe — ✓"])
def test_json_is_the_same_value_after_control_characters_are_escaped(text: str) -> None:
    encoded = escape_json(json.dumps(text, ensure_ascii=False))
    assert encoded.isprintable()
    assert json.loads(encoded) == text


def test_name_output_has_each_name_once(capsys: pytest.CaptureFixture[str]) -> None:
    for names in (["node/a", "node/b", "node/a"], []):
        print_result(DATA, Output.NAME, lambda: "not this", names=lambda: names)  # noqa: B023
    assert capsys.readouterr().out == "node/a\nnode/b\n"


def test_wide_is_a_table_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(DATA, Output.WIDE, lambda: "usual", as_wide=lambda: "wide")
    assert capsys.readouterr().out == "wide\n"
