"""ConfigMaps and Secrets in the remote: as they are, but for tokens, which stay at home."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from tests.translators.golden import IDENTITY
from tests.translators.strategies import json_values
from translators.identity import Identity
from translators.mirror import configmap, secret
from translators.objects import Object

_Translate = Callable[[Object, Identity], Object]
_BOTH = pytest.mark.parametrize(
    "translate", [configmap.to_remote, secret.to_remote], ids=["ConfigMap", "Secret"]
)


def _home(**more: Any) -> Object:
    return {"metadata": {"name": "settings", "namespace": "shop", "uid": "home-1"}, **more}


@_BOTH
@given(value=json_values)
def test_all_but_metadata_is_carried(translate: _Translate, value: Any) -> None:
    content = {"data": {"a": "MQ=="}, "binaryData": {"b": "AA=="}, "type": "t", "future": value}
    home = _home(immutable=True, **content)
    before = copy.deepcopy(home)
    remote = translate(home, IDENTITY)

    assert remote == {"metadata": remote["metadata"], "immutable": True, **content}
    assert home == before


@_BOTH
def test_an_empty_one_stays_empty(translate: _Translate) -> None:
    assert set(translate(_home(), IDENTITY)) == {"metadata"}


@_BOTH
def test_owners_finalizers_and_versions_stay_at_home(translate: _Translate) -> None:
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

    assert set(translate(home, IDENTITY)["metadata"]) == {
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
def test_which_secrets_leave_home(kind: str | None, leaves: bool) -> None:
    assert secret.is_copied(_home(type=kind) if kind else _home()) is leaves
