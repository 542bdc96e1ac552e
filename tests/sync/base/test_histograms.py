"""Numbers on what runs: that they are counted where they should be, and cost little."""

from __future__ import annotations

import pytest

from sync.base.histograms import Histogram
from sync.kube.api_errors import ApiError, NotFound, Unreachable
from sync.kube.api_resources import PODS
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault


def test_bucket_includes_its_bound_and_the_last_has_the_rest() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 30.0, 31.0):
        histogram.observe(seconds)
    assert histogram.counts == [2, 1, *[0] * 10, 1, 1]
    assert histogram.total == pytest.approx(61.0021)


def test_timed_observes_blocks_that_raise() -> None:
    histogram = Histogram()
    with pytest.raises(KeyError), histogram.timed():
        raise KeyError
    assert sum(histogram.counts) == 1


async def test_requests_are_counted_by_method_and_code(
    home_api: FakeApi, client_for: ClientFor
) -> None:
    client = await client_for(home_api, "home")
    with pytest.raises(NotFound):
        await client.get(PODS, "none", namespace="default")
    home_api.fail(Fault("GET", "/api/v1/pods", drop="before", times=None))
    with pytest.raises(Unreachable):
        await client.list(PODS)
    home_api.heal()
    async with client.stream("/api/v1/pods", query={"watch": "1"}):
        pass
    assert client.metrics.answered == {("GET", "404"): 1, ("GET", "none"): 1, ("STREAM", "200"): 1}
    assert {key: sum(it.counts) for key, it in client.metrics.durations.items()} == {
        ("GET", "404"): 1,
        ("GET", "none"): 1,
    }


async def test_a_server_adds_no_labels_by_its_status_codes(
    home_api: FakeApi, client_for: ClientFor
) -> None:
    client = await client_for(home_api, "home")
    for code in (520, 599, 429, 777):
        home_api.fail(Fault("GET", code=code, times=None))
        with pytest.raises(ApiError):
            await client.request("GET", PODS.path(), retry_on_throttle=False)
        with pytest.raises(ApiError):
            async with client.stream("/api/v1/pods"):
                pass
        home_api.heal()
    assert {code for _, code in client.metrics.answered} == {"429", "5xx", "7xx"}


def test_histogram_with_other_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 2.0, 3.0):
        histogram.observe(seconds)
    assert histogram.counts == [1, 1, 1]
