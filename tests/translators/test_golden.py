"""The results of all golden files are as recorded, and inputs are not modified."""

from __future__ import annotations

import copy

import pytest

from tests.translators.golden import Case, cases

_ALL = list(cases())


@pytest.mark.parametrize("case", _ALL, ids=[case.about for case in _ALL])
def test_result_is_as_recorded(case: Case) -> None:
    before = copy.deepcopy(case.content)

    assert case.results() == case.recorded()
    assert case.content == before, "inputs are not modified"


def test_every_translation_is_recorded() -> None:
    assert {case.content["translate"] for case in _ALL} == {
        "configmap",
        "endpointslice",
        "event",
        "pod",
        "secret",
        "service",
        "status",
    }
