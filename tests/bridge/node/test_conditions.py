"""Conditions of the virtual node, by the state of the remote."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.node import conditions as health
from bridge.node.conditions import NodeCondition
from sync.kube.api_errors import (
    ApiServerCertificateError,
    ClientConfigError,
    Forbidden,
    KubeError,
    ServerError,
    Unauthorized,
    Unreachable,
)
from translators.object_accessors import Object

_CORDONED: Object = {"unschedulable": True, "taints": [{"key": "c", "effect": "NoSchedule"}]}
_TAINTED: Object = {"taints": [{"key": "t", "effect": "NoExecute"}]}


def _worker(spec: Object | None = None, *, ready: str = "True", **conditions: str) -> Object:
    statuses = {"Ready": ready, **conditions}
    listed = [{"type": kind, "status": status} for kind, status in statuses.items()]
    return {"spec": spec or {}, "status": {"conditions": listed}}


def each(*nodes: Object) -> list[tuple[Object, int]]:
    """Nodes that stand for themselves."""
    return [(node, 1) for node in nodes]


def test_node_of_a_group_counts_as_often_as_the_group_has_nodes() -> None:
    groups = [(_worker(), 3), (_worker(_CORDONED, MemoryPressure="True"), 2)]
    assert "3 of 5 (2 cordoned)" in health.ready_condition(groups).message
    assert health.pressure_condition("MemoryPressure", groups).message.startswith("2 of 5")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            [_worker(), _worker()],
            NodeCondition(True, "RemoteReady", "usable nodes of the remote cluster: 2 of 2"),
        ),
        (
            [_worker(), _worker(_CORDONED), _worker(_CORDONED), _worker(_TAINTED, ready="Unknown")],
            NodeCondition(
                True,
                "RemoteReady",
                "usable nodes of the remote cluster: 1 of 4 (1 NotReady, 2 cordoned)",
            ),
        ),
        (
            [_worker(_CORDONED), _worker(_TAINTED), _worker(ready="False")],
            NodeCondition(
                True,
                "NoSchedulableNodes",
                "no node of the remote cluster takes new pods (1 NotReady, 1 cordoned, "
                "1 tainted); running pods are unaffected",
            ),
        ),
        (
            [_worker(ready="False"), _worker(_CORDONED, ready="Unknown")],
            NodeCondition(
                False, "NoUsableNodes", "no node of the remote cluster is Ready (2 NotReady)"
            ),
        ),
        (
            [],
            NodeCondition(
                False,
                "NoUsableNodes",
                "the remote cluster has no nodes, or none that --node-selector selects",
            ),
        ),
    ],
    ids=["all", "some", "none takes pods", "none is Ready", "none"],
)
def test_ready_condition_of_nodes(nodes: list[Object], expected: NodeCondition) -> None:
    assert health.ready_condition(each(*nodes)) == expected


def test_elastic_remote_without_nodes_is_ready() -> None:
    found = health.ready_condition([], is_elastic=True)
    assert (found.status, found.reason) == (True, "RemoteScalesFromZero")
    assert not health.ready_condition(each(_worker(ready="False")), is_elastic=True).status


def test_unknown_nodes_are_ready_without_pressure() -> None:
    assert health.ready_condition(None).status
    assert health.ready_condition(None).reason == "RemoteNodesUnknown"
    assert not health.pressure_condition("MemoryPressure", None).status


_ANSWER: dict[str, Any] = {"side": "remote", "what": "GET /x"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unauthorized("why", code=401, **_ANSWER), "RemoteCredentialRefused"),
        (Forbidden("why", code=403, **_ANSWER), "RemoteForbidden"),
        (ClientConfigError("why", **_ANSWER), "RemoteKubeconfigUnusable"),
        (ApiServerCertificateError("why", **_ANSWER), "RemoteNotTrusted"),
        (Unreachable("why", **_ANSWER), "RemoteUnreachable"),
        (ServerError("why", code=500, **_ANSWER), "RemoteUnreachable"),
    ],
    ids=lambda it: type(it).__name__,
)
def test_each_error_has_its_own_reason(error: KubeError, reason: str) -> None:
    found = health.unreachable_condition(error)
    assert (found.status, found.reason) == (False, reason)
    assert "why" in found.message


def test_pressure_is_true_when_all_ready_nodes_report_it() -> None:
    kind = "MemoryPressure"
    pressed = _worker(MemoryPressure="True")
    away = _worker(ready="Unknown", MemoryPressure="Unknown")
    assert not health.pressure_condition(kind, each(_worker(), away)).status
    some = health.pressure_condition(kind, each(_worker(), pressed))
    assert (some.status, some.message[:6]) == (False, "1 of 2")
    assert health.pressure_condition(kind, each(pressed, away)).status
    assert not health.pressure_condition("DiskPressure", each(pressed)).status
    assert not health.pressure_condition(kind, []).status
