"""Compares quantities and pods' requests with Kubernetes' own code in a Go program.

The program answers each line of JSON with one: ``{"quantities": […], "binary": …}`` with the
canonical sum, and ``{"pod": …}`` with the result of PodRequests, in thousandths.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.clusters import go_build
from e2e.clusters.cluster import Settings
from e2e.clusters.go_recipes import Recipe
from e2e.kubectl import Json
from translators.capacity import pod_requests
from translators.quantity import QuantityError, format_quantity, parse_quantity

_SOURCE = """package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

type question struct {
	Quantities []string
	Binary     bool
	Pod        *v1.Pod
}

func answer(asked question) any {
	if asked.Pod != nil {
		found := map[string]int64{}
		options := helpers.PodResourcesOptions{UseStatusResources: true}
		for name, quantity := range helpers.PodRequests(asked.Pod, options) {
			found[string(name)] = quantity.MilliValue()
		}
		return found
	}
	sum := resource.Quantity{}
	for _, text := range asked.Quantities {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return err.Error()
		}
		sum.Add(quantity)
	}
	sum.Format = resource.DecimalSI
	if asked.Binary {
		sum.Format = resource.BinarySI
	}
	return sum.String()
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		asked := question{}
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
				output, _ := json.Marshal(answer(asked))
				fmt.Println(string(output))
	}
}
"""
EXAMPLES = 1000

Ask = Callable[[Json], Any]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Sends questions to the program."""
    chosen = Settings()
    # A name for each version of the program: builds are kept by name.
    name = f"oracle-{hashlib.sha256(_SOURCE.encode()).hexdigest()[:8]}"
    recipe = Recipe(
        name=name,
        module="k8s.io/component-helpers",
        version=chosen.kubernetes.staging,
        programs=((name, "."),),
        sources=(("main.go", _SOURCE),),
    )
    program = go_build.programs(recipe, chosen.cache, print) / name
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        written, read = process.stdin, process.stdout

        def ask(question: Json) -> Any:
            print(json.dumps(question), file=written, flush=True)
            return json.loads(read.readline())

        yield ask
        process.stdin.close()


_SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
_quantities = st.builds(
    str.__add__,
    st.from_regex(r"[+-]?[0-9]{1,12}(\.[0-9]{0,10})?", fullmatch=True),
    st.one_of(
        st.sampled_from(_SUFFIXES),
        st.from_regex(r"[eE][+-]?[0-9]", fullmatch=True),
    ),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(texts=st.lists(_quantities, min_size=1, max_size=4), binary=st.booleans())
def test_sum_is_printed_as_by_apimachinery(ask: Ask, texts: list[str], binary: bool) -> None:
    total = sum(map(parse_quantity, texts), Fraction(0))
    assert ask({"quantities": texts, "binary": binary}) == format_quantity(total, binary=binary)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.text(alphabet="0123456789+-.eEinumkKMGTP ", max_size=6))
def test_quantities_are_parsed_as_by_apimachinery(ask: Ask, text: str) -> None:
    """It accepts more, such as a suffix without a number, and cannot print 1e100."""
    try:
        value = parse_quantity(text)
    except QuantityError:
        return
    if abs(value) < 2**63:
        assert ask({"quantities": [text], "binary": False}) == format_quantity(value)


_lists = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["0", "100m", "1", "1500m", "2"]),
        "memory": st.sampled_from(["64Mi", "1G", "500m", "3Gi"]),
        "hugepages-2Mi": st.sampled_from(["2Mi", "8Mi"]),
        "example.com/gpu": st.sampled_from(["1", "4"]),
    },
)
_NAMES = st.sampled_from(["a", "b", "c"])
_containers = st.builds(
    lambda name, requests, restart: {
        "name": name,
        "resources": {"requests": requests},
        **({"restartPolicy": restart} if restart else {}),
    },
    _NAMES,
    _lists,
    st.sampled_from(["", "Always"]),
)
_statuses = st.builds(
    lambda name, has, granted: {
        "name": name,
        "allocatedResources": granted,
        **({"resources": {"requests": has}} if has is not None else {}),
    },
    _NAMES,
    st.none() | _lists,
    _lists,
)


def _several(each: st.SearchStrategy[Json]) -> st.SearchStrategy[list[Json]]:
    return st.lists(each, max_size=3, unique_by=lambda it: it["name"])


_pods = st.builds(
    lambda containers, init, whole, overhead, statuses, reason: {
        "spec": {
            "containers": [{**it, "restartPolicy": None} for it in containers],
            "initContainers": init,
            "overhead": overhead,
            **({"resources": {"requests": whole}} if whole is not None else {}),
        },
        "status": {
            "containerStatuses": statuses,
            "conditions": [{"type": "PodResizePending", "reason": reason}],
        },
    },
    _several(_containers),
    _several(_containers),
    st.none() | _lists,
    _lists,
    _several(_statuses),
    st.sampled_from(["Infeasible", "Deferred"]),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(_pods)
def test_requests_of_a_pod_equal_those_of_the_scheduler(ask: Ask, pod: Json) -> None:
    expected = {
        name: millis if name == pod_requests.CPU else -(-millis // 1000)
        for name, millis in ask({"pod": pod}).items()
        if millis
    }
    assert pod_requests.requests_of(pod) == {**expected, pod_requests.PODS: 1}
