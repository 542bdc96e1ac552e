"""The manifests for GitOps tools fit the chart. e2e/test_gitops.py validates the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bridge.base.version import version
from tests.bridge.install import chart_schema
from tests.bridge.install.kustomize_base import MANIFESTS

GITOPS = MANIFESTS / "gitops"
PAGE = MANIFESTS.parent / "docs" / "how-to" / "install-with-gitops.md"


def flux() -> tuple[dict[str, Any], dict[str, Any]]:
    """The source, and the release."""
    source, release = yaml.safe_load_all((GITOPS / "flux.yaml").read_text())
    return source, release


def application_set() -> tuple[dict[str, Any], dict[str, Any]]:
    """The only element of the generator, and the template's source."""
    spec = yaml.safe_load((GITOPS / "argocd.yaml").read_text())["spec"]
    (generator,) = spec["generators"]
    (element,) = generator["list"]["elements"]
    return element, spec["template"]["spec"]["source"]


def values() -> list[Any]:
    """Values of the chart in the manifests; both have the same."""
    return [flux()[1]["spec"]["values"], application_set()[0]["values"]]


@pytest.mark.parametrize("given", values(), ids=["flux", "argocd"])
def test_values_fit_the_schema_of_the_chart(given: dict[str, Any]) -> None:
    jsonschema.validate(given, json.loads(chart_schema.FILE.read_text()))
    assert given["image"].endswith(f":{version()}")
    assert len(given["remotes"]) == 2
    assert all("existingSecret" in remote for remote in given["remotes"])
    assert given == values()[0]


def test_template_passes_the_values_of_an_element_on() -> None:
    assert application_set()[1]["helm"]["values"] == "{{ toJson .values }}"


def test_sources_have_the_chart_of_this_version() -> None:
    source, release = flux()
    chart = release["spec"]["chart"]["spec"]
    assert chart["sourceRef"]["name"] == source["metadata"]["name"]
    places = {
        (source["spec"]["ref"]["tag"], Path(chart["chart"])),
        (application_set()[1]["targetRevision"], Path(application_set()[1]["path"])),
    }
    assert places == {(f"v{version()}", Path("manifests/chart"))}


def test_page_shows_the_secrets_of_the_remotes() -> None:
    page = PAGE.read_text()
    for remote in values()[0]["remotes"]:
        assert remote["existingSecret"] in page
