"""The definitions of all custom resources, complete with what the command line declares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bridge.cli.options.common_options import CLUSTERS
from bridge.cli.options.join_options import CAPACITY, JOIN
from bridge.cli.options.option_declaration import Option
from bridge.cli.options.value_parsing import Duration
from bridge.crds import remote_crd
from translators.object_accessors import Object

#: Options of `bridge join` that the Remote itself has, or that are the process's.
_NOT_IN_OBJECTS = ("name", "health-port")
#: Options that the command line reads as text, for exactness.
_FRACTIONS = ("share",)


def _property(option: Option) -> str:
    """``remote-pod-cidr`` as ``remotePodCidr``."""
    first, *rest = option.name.split("-")
    return first + "".join(it.capitalize() for it in rest)


#: The options of `bridge join` that a Remote can have, by the property of ``spec.options``: not the
#: clusters, and not what names a file of the bridge.
REMOTE_OPTIONS: Mapping[str, Option] = {
    _property(it): it
    for it in JOIN
    if it.group != CLUSTERS and it.kind is not Path and it.name not in _NOT_IN_OBJECTS
}


def definitions() -> list[Object]:
    """The definitions, for `bridge crds`."""
    return [remote_definition()]


def remote_definition() -> Object:
    """The definition of Remotes."""
    options = {name: _structural_schema(it) for name, it in REMOTE_OPTIONS.items()}
    return remote_crd.remote_definition(options)


def _structural_schema(option: Option) -> Object:
    """The schema of an option's values without the alternatives of a configuration file, which a
    structural schema cannot have, and without a default."""
    schema: Object = {"description": option.help}
    if option.choices:
        schema |= {"type": "string", "enum": list(option.choices)}
    elif option.form == "map":
        schema |= {"type": "object", "additionalProperties": {"type": "string"}}
    elif option.form == "list":
        schema |= {"type": "array", "items": {"type": "string"}}
    elif isinstance(option.kind, Duration):
        schema |= {"type": "string"}
    elif option.kind in (bool, int, float):
        names = {bool: "boolean", int: "integer", float: "number"}
        schema |= {"type": names[option.kind]}
        limits = {"minimum": option.minimum, "maximum": option.maximum}
        schema |= {name: it for name, it in limits.items() if it is not None}
    elif option.name in _FRACTIONS:
        schema |= {"type": "number"}
    elif option.group == CAPACITY:
        schema |= {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
        }
    else:
        schema |= {"type": "string"}
    return schema
