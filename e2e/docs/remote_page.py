"""docs/reference/remote.md, from the CustomResourceDefinition of Remotes."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.cli.custom_resources import REMOTE_OPTIONS, definitions
from bridge.fleet.remote_objects import STATE_REASONS
from translators.object_accessors import Object

_HEAD = """\
# Remote

<!-- made by `python -m e2e.docs write`: do not edit -->

A remote cluster as an object of home (`cluster-bridge.io/v1alpha1`), served by
`bridge run --remotes` ([declare remotes](../how-to/declare-remotes.md)). `bridge crds` prints the
definition.

"""
_REJECTIONS = (
    *("SecretNotFound", "SecretInvalid", "SecretUnreadable", "KubeconfigRejected"),
    *("OptionsInvalid", "NodeNameTaken"),
)
_TRANSIENT = ("NotWritable", "NotValidated")


def _conditions() -> str:
    ready = [it for it in STATE_REASONS.values() if it != STATE_REASONS["running"]]
    return f"""
## Status

`observedGeneration`, `nodeName`, and `conditions`:

| condition | meaning |
|---|---|
| `Accepted` | the spec and the Secret are valid. Reasons of `False`: {_codes(_REJECTIONS)}; \
{_codes(_TRANSIENT)} are tried again |
| `Ready` | a bridge serves the node. Reasons: `{STATE_REASONS["running"]}` (`True`); \
{_codes(["Pending", *ready])}, and those of `Accepted` (`False`) |
| `Stalled` | only present, and `True`, while the Remote waits for a person |
""".replace("\\\n", "")


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{it}`" for it in names)


def page() -> str:
    """The page."""
    (remote,) = (it for it in definitions() if it["spec"]["names"]["kind"] == "Remote")
    schema = remote["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = schema["properties"]["spec"]["properties"]
    lines = [_HEAD + "## Spec", "", "| field | type | meaning |", "|---|---|---|"]
    for name, field in spec.items():
        lines.append(_row(name, field))
        if name == "options":
            continue
        lines += [_row(f"{name}.{it}", its) for it, its in field.get("properties", {}).items()]
    lines += ["", "## Options", "", "| option | type | as | meaning |", "|---|---|---|---|"]
    for name, field in spec["options"]["properties"].items():
        flag = REMOTE_OPTIONS[name].flag
        lines.append(f"| `{name}` | {_type(field)} | `{flag}` | {_text(field)} |")
    return "\n".join(lines) + "\n" + _conditions()


def _row(name: str, field: Object) -> str:
    return f"| `{name}` | {_type(field)} | {_text(field)} |"


def _type(field: Object) -> str:
    if "enum" in field:
        return " or ".join(f"`{it}`" for it in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if field.get("type") == "array":
        return "list of strings"
    if "additionalProperties" in field:
        return "map of strings"
    return str(field["type"])


def _text(field: Object) -> str:
    return str(field["description"]).replace("|", "\\|")
