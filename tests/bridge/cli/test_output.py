"""Answers for people and for programs."""

from __future__ import annotations

import json

import pytest
import yaml

from bridge.cli.output import Output, columns, show

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
