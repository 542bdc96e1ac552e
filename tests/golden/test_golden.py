"""The product writes and prints what the golden files record."""

from __future__ import annotations

import pytest

from e2e.revisions import REPOSITORY
from tests.golden import scenarios
from tests.golden.redaction import PROSE, Redaction


@pytest.mark.core  # runs beside the end-to-end tests: most of it is the time of child processes
@pytest.mark.long
@pytest.mark.real_time
@pytest.mark.timeout(240)  # a bridge and 30 commands, beside other tests
@pytest.mark.parametrize("name", scenarios.SCENARIOS)
async def test_result_is_as_recorded(name: str) -> None:
    found = await scenarios.run(name, REPOSITORY)
    assert scenarios.difference(name, found) == ""


def test_every_file_has_a_scenario() -> None:
    files = {path.stem for path in scenarios.RESULTS.glob("*.yaml")}
    assert files == set(scenarios.SCENARIOS)


def test_no_credential_is_recorded() -> None:
    for path in scenarios.RESULTS.glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert "canary" not in text
        assert "issued-token" not in text


def test_redaction_keeps_inputs_and_removes_prose_and_server_metadata() -> None:
    redaction = Redaction({"http://h:1": "<home>"}, kept=frozenset({"kept"}))
    given = {
        "metadata": {"uid": "u", "name": "n"},
        "status": {"message": "worded", "reason": "Kept", "conditions": [{"message": "kept"}]},
        "at": "2020-01-02T03:04:05Z of http://h:1 (pid 7)",
        "hint": "",
        "podSecurity": "baseline",
        "found": "worded differently",
    }
    assert redaction.apply(given) == {
        "metadata": {"name": "n"},
        "status": {"message": PROSE, "reason": "Kept", "conditions": [{"message": "kept"}]},
        "at": "2020-01-02T03:04:05Z of <home> (pid <pid>)",
        "hint": "",
        "podSecurity": "baseline",
        "found": PROSE,
    }
