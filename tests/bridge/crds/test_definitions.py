"""`bridge crds` prints structural schemas, which the API server requires."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from typer.testing import CliRunner

from bridge.cli.command_table import app
from bridge.cli.custom_resources import definitions
from bridge.cli.options.common_options import CLUSTERS
from bridge.cli.options.join_options import JOIN
from translators.object_accessors import Object, name_of

DEFINITIONS = definitions()


def _root(definition: Object) -> Object:
    (version,) = definition["spec"]["versions"]
    found: Object = version["schema"]["openAPIV3Schema"]
    return found


def _schemas(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    yield path, schema
    for name, it in (schema.get("properties") or {}).items():
        yield from _schemas(it, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _schemas(schema[key], f"{path}.{key}")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=name_of)
def test_schema_is_structural_and_without_defaults(definition: Object) -> None:
    for path, schema in _schemas(_root(definition)):
        is_typed = isinstance(schema.get("type"), str)
        assert is_typed != bool(schema.get("x-kubernetes-int-or-string")), path
        # A default would be written into the spec, where GitOps controllers see a difference.
        assert "default" not in schema, path


@pytest.mark.parametrize("definition", DEFINITIONS, ids=name_of)
def test_definition_has_a_status_subresource_and_columns(definition: Object) -> None:
    names, (version,) = definition["spec"]["names"], definition["spec"]["versions"]
    assert name_of(definition) == f"{names['plural']}.cluster-bridge.io"
    assert version["subresources"] == {"status": {}}
    assert "Age" in [it["name"] for it in version["additionalPrinterColumns"]]


def test_each_option_of_a_join_is_a_field_unless_it_is_local_to_the_bridge() -> None:
    (remote,) = [it for it in DEFINITIONS if it["spec"]["names"]["kind"] == "Remote"]
    fields = _root(remote)["properties"]["spec"]["properties"]["options"]["properties"]
    missing = {
        it.name
        for it in JOIN
        if it.group != CLUSTERS and it.name.replace("-", "") not in {n.lower() for n in fields}
    }
    assert missing == {"name", "cert-dir", "tls-cert-file", "tls-private-key-file", "health-port"}
    assert fields["namespaceLinger"] == {
        "description": next(it.help for it in JOIN if it.name == "namespace-linger"),
        "type": "string",
    }
    assert all(it["description"] for it in fields.values())


def test_bridge_crds_prints_every_definition() -> None:
    result = CliRunner().invoke(app, ["crds"])
    assert list(yaml.safe_load_all(result.stdout)) == DEFINITIONS
