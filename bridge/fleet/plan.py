"""Decides which remotes to start, restart and stop. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from bridge.base.join_settings import Part

Verb = Literal["stop", "restart", "start"]


@dataclass(frozen=True, slots=True)
class Action:
    """What to do with one remote."""

    verb: Verb
    key: str
    part: Part
    """The new options; of a remote to stop, the present ones."""


def plan(desired: Mapping[str, Part], current: Mapping[str, Part]) -> tuple[Action, ...]:
    """The actions that lead from the ``current`` remotes to the ``desired`` ones, stops first.

    ``current`` has every remote that was started and not stopped since, also one that fails or has
    left: it is started again only if its options or its state differ. The label alone is no
    difference, since that of a remote without a name is its position.
    """
    stops = [Action("stop", key, part) for key, part in current.items() if key not in desired]
    return (*stops, *_starts(desired, current))


def _starts(desired: Mapping[str, Part], current: Mapping[str, Part]) -> Iterator[Action]:
    for key, part in desired.items():
        present = current.get(key)
        if present is None:
            yield Action("start", key, part)
        elif replace(present, label=part.label) != part:
            yield Action("restart", key, part)


def describe(actions: Iterable[Action]) -> str:
    """``added a, b; changed c; removed d``, or that nothing is to be done."""
    words: Mapping[Verb, str] = {"start": "added", "restart": "changed", "stop": "removed"}
    keys = {verb: [it.key for it in actions if it.verb == verb] for verb in words}
    parts = [f"{words[verb]} {', '.join(names)}" for verb, names in keys.items() if names]
    return "; ".join(parts) or "no remote has changed"


def ports(part: Part) -> frozenset[int]:
    """The fixed ports that a remote listens on."""
    if part.state != "joined":
        return frozenset()
    settings = part.settings
    return frozenset(it for it in (settings.port, settings.health_port) if it)
