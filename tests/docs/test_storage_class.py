"""The StorageClasses of the manifests and pages are those that the bridge serves."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from e2e.docs.generated_pages import DOCS
from translators.storage.identifiers import DRIVER
from translators.storage.storage_class import is_default, is_served, parse_served_class

MANIFEST = DOCS.parent / "manifests" / "storage-class.yaml"
CSI_DRIVER = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "CSIDriver",
    "metadata": {"name": DRIVER},
    "spec": {"attachRequired": False, "storageCapacity": True},
}


def objects(text: str, kind: str) -> list[dict[str, Any]]:
    return [obj for obj in yaml.safe_load_all(text) if obj and obj["kind"] == kind]


def of_page(name: str, kind: str) -> list[dict[str, Any]]:
    """The objects in the YAML blocks of a page."""
    page = (DOCS / name).read_text("utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    return [obj for block in blocks for obj in objects(block, kind)]


def test_manifest_has_a_served_class_that_waits_for_its_consumer() -> None:
    [found] = objects(MANIFEST.read_text("utf-8"), "StorageClass")
    assert is_served(found)
    served = parse_served_class(found)
    assert served.waits_for_consumer
    assert (served.remote_class, served.remotes, served.reclaim_policy) == ("", None, "Delete")
    assert not is_default(found)


def test_driver_reports_capacity_and_attaches_nothing() -> None:
    assert objects(MANIFEST.read_text("utf-8"), "CSIDriver") == [CSI_DRIVER]


@pytest.mark.parametrize("page", ["how-to/use-volumes.md", "tutorials/stateful-app.md"])
def test_pages_have_the_classes_and_driver_of_the_manifest(page: str) -> None:
    [expected] = objects(MANIFEST.read_text("utf-8"), "StorageClass")
    first = of_page(page, "StorageClass")[0]
    assert {"reclaimPolicy": "Delete", **first, "metadata": expected["metadata"]} == expected
    assert of_page(page, "CSIDriver") == [CSI_DRIVER]


def test_optional_fields_of_the_page_are_known() -> None:
    [_, every] = of_page("how-to/use-volumes.md", "StorageClass")
    served = parse_served_class(every)
    assert is_default(every)
    assert served.remote_class == "premium-ssd"
    assert served.access_modes == ("ReadWriteOnce", "ReadWriteOncePod")
    assert served.remotes == ("0123456789abcdef",)
    assert served.reclaim_policy == "Retain"
