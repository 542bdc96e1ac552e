"""A controller of one's own is one class and one line of registration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Component
from sync.engine.controller_list import ControllerOptions, build_controllers
from sync.kube.api_resources import POD_DISRUPTION_BUDGETS, PODS, Object
from tests.sync.engine import budget_controller
from tests.sync.engine.budget_controller import BudgetController
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness

PAGE = Path(__file__).parents[3] / "docs/development/add-a-controller.md"


def with_budgets(context: ControllerContext, options: ControllerOptions) -> Sequence[Component]:
    """The registration of the example, beside all others."""
    return [*build_controllers(context, options), BudgetController(context)]


def budget(minimum: int) -> Object:
    """A PodDisruptionBudget at home."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"minAvailable": minimum, "selector": {"matchLabels": {"app": "web"}}},
    }


def copied(harness: EngineHarness) -> object:
    """The spec of the remote's copy."""
    copy = harness.remote.find(POD_DISRUPTION_BUDGETS, "web", REMOTE_NAMESPACE)
    return None if copy is None else copy["spec"]["minAvailable"]


async def test_registered_controller_copies_updates_and_deletes(harness: EngineHarness) -> None:
    harness.build = with_budgets
    harness.home.put(budget(1))
    await harness.start()
    assert copied(harness) is None  # No pod of the namespace is on the virtual node.
    harness.pod()
    await harness.settle()
    assert copied(harness) == 1

    harness.home.update(POD_DISRUPTION_BUDGETS, "web", {"spec": {"minAvailable": 2}}, "default")
    await harness.settle()
    assert copied(harness) == 2

    harness.home.delete(PODS, "a", "default", grace_seconds=0)
    await harness.settle()
    assert copied(harness) is None


async def test_registered_controller_replays_its_cache_after_a_restart(
    harness: EngineHarness,
) -> None:
    harness.build = with_budgets
    harness.home.put(budget(1))
    await harness.start()
    harness.pod()
    await harness.settle()
    await harness.stop()
    harness.home.update(POD_DISRUPTION_BUDGETS, "web", {"spec": {"minAvailable": 3}}, "default")
    await harness.start()
    assert copied(harness) == 3
    await harness.restart()
    assert harness.writes() == []


async def test_registered_controller_is_shown_with_its_queue_and_watches(
    harness: EngineHarness,
) -> None:
    harness.build = with_budgets
    await harness.start()
    harness.pod()
    await harness.settle()
    assert [it.name for it in harness.engine.controllers][-1] == "budgets"
    sides = [
        it.client.side for it in harness.engine.watches if it.resource is POD_DISRUPTION_BUDGETS
    ]
    assert sides == ["remote", "home"]


def test_page_quotes_the_example() -> None:
    code = Path(budget_controller.__file__).read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    quoted = [block for block in blocks if "BudgetController(context)," not in block]
    assert quoted
    for block in quoted:
        for part in block.strip("\n").split("\n    ...\n"):
            assert part.strip("\n") in code, part
