"""A secret in all inputs does not appear in logs, errors, Events or metrics."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator

import pytest
from aiohttp import web

from bridge.observability.log_output import JsonFormatter
from sync.kube.api_resources import EVENTS, NODES, PODS, SECRETS, Object
from tests.bridge.running_join import RunningJoin, kubelet_api_client, running_join
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE, EngineHarness
from translators.object_accessors import name_of

ENCODED = base64.b64encode(CANARY.encode()).decode()
#: Troubles that are logged, each with what was being done.
TROUBLES = (
    Fault("POST", "*/secrets", drop="after"),
    Fault("POST", "*/pods", code=500),
    Fault("POST", "*/pods", code=403),
    Fault("PATCH", "*/secrets/*", raw=b"{" + CANARY.encode()),
    Fault("PATCH", "*/secrets/*", code=409),
    Fault("GET", "*/pods", watch=True, raw=b'{"type":"ADDED","object":' + CANARY.encode()),
    Fault("DELETE", "*/secrets/*", drop="before"),
)


def planted(two: Clusters) -> EngineHarness:
    """Home holds it in a Secret and a ConfigMap."""
    two.home.put(secret("key", data={"password": ENCODED}))
    two.home.put(config_map("conf", data={"password": CANARY}))
    return EngineHarness(two.home, two.remote)


def pod(harness: EngineHarness) -> Object:
    container = {
        "name": "main",
        "image": "busybox:1",
        "command": ["sh", "-c", f"login {CANARY}"],
        "env": [{"name": "PASSWORD", "value": CANARY}],
        "envFrom": [{"secretRef": {"name": "key"}}, {"configMapRef": {"name": "conf"}}],
    }
    made = harness.pod("a", containers=[container])
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": CANARY}
    return harness.home.update(
        PODS, name_of(made), {"metadata": {"annotations": annotations}}, "default"
    )


async def look(run: RunningJoin) -> str:
    """The bridge's responses about itself and its pods, to requests that contain a secret."""
    query = f"command=login&command={CANARY}&output=1"
    upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    responses = ""
    async with kubelet_api_client(run, token=CANARY) as session:
        async with session.post(f"/exec/default/a/main?{query}", headers=upgrade) as answer:
            responses += await answer.text()
        async with session.post(f"/exec/default/{CANARY}/main?{query}", headers=upgrade) as answer:
            await answer.read()
        for path in ("/metrics", "/metrics/resource", "/stats/summary", "/healthz", "/configz"):
            async with session.get(f"{path}?token={CANARY}") as answer:
                responses += await answer.text()
    return responses


async def test_planted_secrets_appear_in_no_output(
    two: Clusters, soon: None, no_linger: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=500, text="not today")

    two.remote.route("*", "*/pods/a/exec", refuse)
    harness = planted(two)
    for fault in TROUBLES:
        two.remote.fail(fault)
    async with running_join(two, two.settings) as run:
        pod(harness)
        await two.remote.until(lambda: harness.remote_pod("a"))
        harness.report_running("a")
        await two.home.until(lambda: harness.status("a").get("phase") == "Running")
        changed = base64.b64encode(f"{CANARY}2".encode()).decode()
        two.home.update(SECRETS, "key", {"data": {"password": changed}}, "default")
        await two.remote.until(
            lambda: (harness.secret("key", REMOTE_NAMESPACE) or {})["data"]["password"] == changed
        )
        responses = await look(run)
        two.home.delete(PODS, "a", "default")
        await two.remote.until(
            lambda: "deletionTimestamp" in (harness.remote_pod("a") or {})["metadata"]
        )
        two.remote.remove(PODS, "a", REMOTE_NAMESPACE)
        await two.remote.until(lambda: harness.secret("key", REMOTE_NAMESPACE) is None)
    assert all(fault.hits for fault in TROUBLES)
    shown = {
        "logs": "\n".join(_texts(caplog)),
        "the join's lines": str(run.reports),
        "responses": responses,
        "Events": str(two.home.objects(EVENTS)),
        "the Node": str(two.home.get(NODES, NODE)),
    }
    for where, text in shown.items():
        assert CANARY not in text, where
        assert ENCODED not in text, where
    assert "pod default/a: created in the remote" in shown["logs"]


def _texts(caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """The lines of our own loggers, with their tracebacks; for people, and as JSON."""
    formatters = logging.Formatter("%(name)s %(message)s"), JsonFormatter()
    for record in caplog.records:
        if record.name.partition(".")[0] in ("bridge", "sync", "translators", "cluster-bridge"):
            yield from (formatter.format(record) for formatter in formatters)
