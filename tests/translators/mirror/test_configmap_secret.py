"""The remote copies of ConfigMaps and Secrets."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given

from tests.translators.golden import IDENTITY
from tests.translators.strategies import json_values
from translators.mirror import configmap_secret
from translators.object_accessors import Object


def _home(**more: Any) -> Object:
    return {"metadata": {"name": "settings", "namespace": "shop", "uid": "home-1"}, **more}


@given(value=json_values)
def test_only_metadata_is_translated(value: Any) -> None:
    content = {"data": {"a": "MQ=="}, "binaryData": {"b": "AA=="}, "type": "t", "future": value}
    home = _home(immutable=True, **content)
    before = copy.deepcopy(home)
    remote = configmap_secret.translate_data(home, IDENTITY)

    assert remote == {"metadata": remote["metadata"], "immutable": True, **content}
    assert home == before


def test_missing_fields_are_not_added() -> None:
    assert set(configmap_secret.translate_data(_home(), IDENTITY)) == {"metadata"}


def test_home_only_metadata_is_dropped() -> None:
    home = _home()
    home["metadata"] |= {
        "ownerReferences": [{"uid": "x"}],
        "finalizers": ["example.com/x"],
        "resourceVersion": "7",
        "generateName": "settings-",
        "creationTimestamp": "2025-11-03T09:14:02Z",
        "managedFields": [{}],
        "selfLink": "/x",
    }

    assert set(configmap_secret.translate_data(home, IDENTITY)["metadata"]) == {
        "name",
        "namespace",
        "labels",
        "annotations",
    }


@pytest.mark.parametrize(
    ("kind", "leaves"),
    [
        ("Opaque", True),
        ("kubernetes.io/tls", True),
        ("kubernetes.io/dockerconfigjson", True),
        (None, True),
        ("kubernetes.io/service-account-token", False),
    ],
    ids=lambda value: str(value),  # noqa: PLW0108  # booleans too
)
def test_service_account_tokens_are_not_copied(kind: str | None, leaves: bool) -> None:
    assert configmap_secret.is_copied_secret(_home(type=kind) if kind else _home()) is leaves
