"""A controller of one's own is one class and one line of registration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Component
from sync.engine.controller_list import ControllerOptions, build_controllers
from sync.kube.resources import POD_DISRUPTION_BUDGETS, PODS, Object
from tests.sync.engine import budget_controller
from tests.sync.engine.budget_controller import BudgetController
from tests.sync.world import THERE, World

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


def copied(world: World) -> object:
    """What the remote's copy demands."""
    copy = world.remote.find(POD_DISRUPTION_BUDGETS, "web", THERE)
    return None if copy is None else copy["spec"]["minAvailable"]


async def test_registered_controller_copies_updates_and_deletes(world: World) -> None:
    world.build = with_budgets
    world.home.put(budget(1))
    await world.start()
    assert copied(world) is None  # No pod of the namespace is on the virtual node.
    world.pod()
    await world.settle()
    assert copied(world) == 1

    world.home.update(POD_DISRUPTION_BUDGETS, "web", {"spec": {"minAvailable": 2}}, "default")
    await world.settle()
    assert copied(world) == 2

    world.home.delete(PODS, "a", "default", grace_seconds=0)
    await world.settle()
    assert copied(world) is None


async def test_registered_controller_replays_its_cache_after_a_restart(world: World) -> None:
    world.build = with_budgets
    world.home.put(budget(1))
    await world.start()
    world.pod()
    await world.settle()
    await world.stop()
    world.home.update(POD_DISRUPTION_BUDGETS, "web", {"spec": {"minAvailable": 3}}, "default")
    await world.start()
    assert copied(world) == 3
    await world.restart()
    assert world.writes() == []


async def test_registered_controller_is_shown_with_its_queue_and_watches(world: World) -> None:
    world.build = with_budgets
    await world.start()
    world.pod()
    await world.settle()
    assert [it.name for it in world.engine.controllers][-1] == "budgets"
    sides = [it.client.side for it in world.engine.watches if it.resource is POD_DISRUPTION_BUDGETS]
    assert sides == ["remote", "home"]


def test_page_quotes_the_example() -> None:
    code = Path(budget_controller.__file__).read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    quoted = [block for block in blocks if "BudgetController(context)," not in block]
    assert quoted
    for block in quoted:
        for part in block.strip("\n").split("\n    ...\n"):
            assert part.strip("\n") in code, part
