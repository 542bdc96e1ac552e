"""The record of an unfinished transfer, as an annotation of its PersistentVolumeClaim. Pure.

A transfer copies the data of a *source* claim to a *target* claim, which it creates. The target of
a copy stays as it is. A move then swaps the PersistentVolumes of both claims, so that the source
has the copy, and the target, which is temporary, the old data.

| claim            | annotation          | meaning                                                 |
|------------------|---------------------|---------------------------------------------------------|
| source of a move | `ANNOTATION_MOVE`   | the move is unfinished; the record has its phase        |
| target           | `ANNOTATION_COPY`   | its data may be incomplete, and may be replaced         |
| target of a move | `ANNOTATION_OLD`    | it has the data that the named claim had before a move  |

The phases of a move:

- ``copying``: the source has its own volume. Any failure leaves it as it is.
- ``swapping``: the copy is verified. The record has both PersistentVolumes, as they will be.
- ``restoring``: a pod used the source meanwhile. The record has both, as they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from bridge.base.command_error import PreflightError
from translators.derived_names import DNS_LABEL_MAX, hashed_name
from translators.object_accessors import Object, metadata, name_of, namespaced_name, uid_of
from translators.ownership_labels import DOMAIN

ANNOTATION_MOVE = f"{DOMAIN}/volume-move"
ANNOTATION_COPY = f"{DOMAIN}/volume-copy"
ANNOTATION_OLD = f"{DOMAIN}/volume-before-move-of"

Phase = Literal["copying", "swapping", "restoring"]
_PHASES: Mapping[str, Phase] = {it: it for it in get_args(Phase)}


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """The state of an unfinished move."""

    node: str
    """The node to which the data moves."""
    run: str
    """Identifies the command that works on it: an earlier one stops when it finds another."""
    target: str
    """The name of the target claim."""
    phase: Phase = "copying"
    since: str = ""
    """The time (of home's API server) before which the copy began."""
    volumes: Mapping[str, Object] = field(default_factory=dict)
    """PersistentVolumes by name, as they will be at the end of the phase."""

    def as_annotation(self) -> str:
        return json.dumps(
            {
                "node": self.node,
                "run": self.run,
                "phase": self.phase,
                "target": self.target,
                "since": self.since,
                "volumes": dict(self.volumes),
            },
            separators=(",", ":"),
        )


def move_record(source: Object) -> MoveRecord | None:
    """The record of the claim's move; None if it has none. Raises PreflightError if it is not
    readable."""
    raw = (metadata(source).get("annotations") or {}).get(ANNOTATION_MOVE)
    if raw is None:
        return None
    try:
        found = json.loads(raw)
        record = MoveRecord(
            str(found["node"]),
            str(found["run"]),
            str(found["target"]),
            _PHASES[found["phase"]],
            str(found["since"]),
            dict(found["volumes"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PreflightError(
            f"home: PersistentVolumeClaim {namespaced_name(source)}: the annotation "
            f"{ANNOTATION_MOVE} is not readable: it was changed, or is of another version of bridge"
        ) from error
    return record


def new_record(source: Object, node: str, run: str) -> MoveRecord:
    """The record of a move that begins, with the name of a claim that no other move has."""
    unique = f"{uid_of(source)}/{run}"
    name = hashed_name(f"{name_of(source)}-before-move", unique, max_length=DNS_LABEL_MAX)
    return MoveRecord(node, run, name)


def copy_value(source_uid: str, run: str) -> str:
    """The value of `ANNOTATION_COPY` while the command ``run`` writes to the target."""
    return f"{source_uid}/{run}"


def copied_uid(target: Object) -> str:
    """The UID of the claim from which an unfinished transfer copies to this one; "" if none."""
    value = (metadata(target).get("annotations") or {}).get(ANNOTATION_COPY)
    return str(value or "").partition("/")[0]


def copies(target: Object, source_uid: str) -> bool:
    """Whether the claim is the target of an unfinished transfer from the source."""
    return copied_uid(target) == source_uid
