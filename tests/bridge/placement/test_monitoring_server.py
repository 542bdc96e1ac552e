"""Probes and metrics of the placer's process: who gets them, and what they say."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from bridge.base.command_error import PreflightError
from bridge.certificates import x509_builder
from bridge.placement import process
from bridge.placement.monitoring_server import MonitoringSettings
from bridge.placement.placer_families import LEASE, placed_pods
from sync.kube.api_resources import LEASES, PODS, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.placement import placement_counters, placer, placer_lease
from sync.placement.home_state import HomeState
from tests.bridge.observability.test_metric_families import DOCUMENT, PLACER, kind, value
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.sync.placement.placed_home import TIERS, Home
from translators.object_accessors import Object
from translators.placement.decision import HOME

SOON = 60.0
USERS = {"token-of-ann": "ann", "token-of-bob": "bob"}


@dataclass
class Process:
    """A running `bridge placement run`, and a client."""

    url: str
    session: aiohttp.ClientSession
    lines: list[str]

    async def send(
        self, path: str, method: str = "GET", *, token: str = ""
    ) -> tuple[int, str, aiohttp.ClientResponse]:
        """Status, text and response."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = self.session.request(method, f"{self.url}{path}", headers=headers)
        async with request as answer:
            return answer.status, await answer.text(), answer

    async def metrics(self) -> dict[str, Metric]:
        """The metrics, as ann."""
        status, text, _ = await self.send("/metrics", token="token-of-ann")
        assert status == 200, text
        return {family.name: family for family in text_string_to_metric_families(text)}

    async def until(self, path: str, status: int = 200) -> None:
        """Waits until the path has this status."""
        async with asyncio.timeout(SOON):
            # There is no event for what another process sees of the server.
            while (await self.send(path))[0] != status:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def until_value(self, wanted: float, name: str, /, **labels: str) -> dict[str, Metric]:
        """Waits until the samples have this sum, and returns the metrics."""
        async with asyncio.timeout(SOON):
            while value(found := await self.metrics(), name, **labels) != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return found


@pytest.fixture
def home(home_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose user ann may read metrics."""
    monkeypatch.setattr(placer, "COLLECT_SECONDS", 0.01)
    home_api.api.authenticate = lambda it: {"username": USERS[it]} if it in USERS else None
    home_api.api.authorize = _permits
    return Home(home_api)


def _permits(spec: Object) -> bool:
    permitted = {"verb": "get", "path": "/metrics"}
    return spec["user"] == "ann" and spec.get("nonResourceAttributes") == permitted


@contextlib.asynccontextmanager
async def running(home: Home, folder: Path) -> AsyncIterator[Process]:
    """A process with a port."""
    pair = x509_builder.self_signed("placer", ["127.0.0.1"])
    files = folder / "tls.crt", folder / "tls.key"
    files[0].write_bytes(pair.certificate)
    files[1].write_bytes(pair.key)
    context = ssl.create_default_context(cadata=pair.certificate.decode())
    ref = KubeconfigRef(write(folder / "home.yaml", kubeconfig(home.api.url)))
    lines, stop = list[str](), asyncio.Event()
    settings = MonitoringSettings(0, "127.0.0.1", files)
    task = asyncio.create_task(
        process.run_placer(ref, "off", monitoring=settings, notify=lines.append, stop=stop)
    )
    try:
        await home.api.until(lambda: task.done() or _port(lines))
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Process(f"https://127.0.0.1:{_port(lines)}", session, lines)
    finally:
        stop.set()
        await task


def _port(lines: list[str]) -> int:
    found = re.search(r"probes and metrics .* listen on port (\d+)", "\n".join(lines))
    return int(found[1]) if found else 0


async def test_nothing_but_probes_is_served_without_permission(home: Home, tmp_path: Path) -> None:
    async with running(home, tmp_path) as placing:
        for path in ("/metrics", "/", "/unknown", "/metrics/", "//livez", "/livez/../metrics"):
            for token in ("", "nonsense", "é".encode().decode("latin-1"), "x" * 20_000):
                for method in ("GET", "POST", "HEAD"):
                    with contextlib.suppress(aiohttp.ClientError):
                        assert (await placing.send(path, method, token=token))[0] in (400, 401)
            assert (await placing.send(path, token="token-of-bob"))[0] == 403
        _, text, answer = await placing.send("/metrics")
        assert "send a bearer token" in text
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        _, text, _ = await placing.send("/metrics", token="token-of-bob")
        assert "user 'bob' may not get /metrics" in text
        for path in ("/livez", "/readyz"):
            assert (await placing.send(path, "POST"))[0] == 405
        assert (await placing.send("/metrics", "POST", token="token-of-ann"))[0] == 405
        assert (await placing.send("/unknown", token="token-of-ann"))[0] == 404


async def test_review_that_home_does_not_answer_permits_nothing(home: Home, tmp_path: Path) -> None:
    for resource in (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS):
        home.api.fail(Fault("POST", resource.path(), code=403, times=1))
    async with running(home, tmp_path) as placing:
        for _ in range(2):
            status, text, _ = await placing.send("/metrics", token="token-of-ann")
            assert status == 500
            assert "bridge_" not in text
        assert await placing.metrics()


async def test_probes_show_names_of_checks_alone(home: Home, tmp_path: Path) -> None:
    home.policy()
    async with running(home, tmp_path) as placing:
        await placing.until("/readyz")
        assert (await placing.send("/livez"))[:2] == (200, "ok")
        _, text, _ = await placing.send("/readyz?verbose")
        checks = "[+]ping ok [+]caches ok [+]home ok [+]election ok readyz check passed"
        assert " ".join(text.split()) == checks


async def test_placer_is_not_ready_before_its_caches_and_its_lease(
    home: Home, tmp_path: Path
) -> None:
    nodes = home.api.fail(Fault("GET", "/api/v1/nodes", code=503, times=None))
    lease = home.api.fail(Fault("*", "*/leases/placement", code=403, times=None))
    async with running(home, tmp_path) as placing:
        assert (await placing.send("/livez"))[0] == 200
        await placing.until("/readyz/caches", 500)
        assert (await placing.send("/readyz"))[0] == 500
        assert value(await placing.metrics(), "bridge_placement_leader") == 0
        home.api.heal(nodes)
        await placing.until("/readyz/caches")
        assert (await placing.send("/readyz/election"))[0] == 500
        home.api.heal(lease)
        await placing.until("/readyz")


async def test_standby_is_ready_and_takes_over(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes one leads, both are ready, and each shows the truth."""
    monkeypatch.setattr(placer_lease, "RENEW_SECONDS", 0.1)
    home.policy()
    home.node("worker", "1")
    (tmp_path / "b").mkdir()
    async with running(home, tmp_path / "b") as second, contextlib.AsyncExitStack() as stack:
        await second.until_value(1, "bridge_placement_leader", lease=LEASE)
        (tmp_path / "a").mkdir()
        first = await stack.enter_async_context(running(home, tmp_path / "a"))
        await first.until("/readyz")
        found = await first.metrics()
        assert value(found, "bridge_placement_leader") == 0
        assert value(found, "bridge_placement_leader_transitions_total") == 0
        home.pod("a")
        await home.placed(a=HOME)
        assert value(await first.metrics(), "bridge_placement_placed_total") == 0
        # Another takes the Lease, as after a pause of the process.
        taken = {"spec": {"holderIdentity": "first"}}
        home.api.update(LEASES, placer_lease.NAME, taken, placer_lease.NAMESPACE)
        await second.until_value(0, "bridge_placement_leader")
        await second.until("/readyz")
        home.api.update(
            LEASES,
            placer_lease.NAME,
            {"spec": {"holderIdentity": ""}},
            placer_lease.NAMESPACE,
        )
        async with asyncio.timeout(SOON):
            leaders = 0.0
            while leaders != 1:
                await asyncio.sleep(0.02)
                both = [await it.metrics() for it in (first, second)]
                leaders = sum(value(it, "bridge_placement_leader") for it in both)


async def used(home: Home, placing: Process) -> dict[str, Metric]:
    """The metrics after each counted event has happened once."""
    home.policy()
    home.node("worker", "1")
    home.remote("c", 1000)
    home.pod("a")
    home.pod("b", owner="job")
    await home.api.until(lambda: {home.choice("a"), home.choice("b")} == {HOME, "c"})
    on_c = next(it for it in "ab" if home.choice(it) == "c")
    failed = {"phase": "Failed", "reason": "RemoteUnschedulable", "message": "no node"}
    change = {"spec": {"nodeName": "c"}, "status": failed}
    home.api.update(PODS, on_c, change, "default")
    home.pod("huge", "99")
    await placing.until_value(1, "bridge_placement_pods_waiting", reason="no-room")
    return await placing.until_value(1, "bridge_placement_refused_total", node="c")


async def test_documentation_has_every_metric_with_type_and_labels(
    home: Home, tmp_path: Path
) -> None:
    """The placer's own in its table, and names of the bridge's table that it shares."""
    text = DOCUMENT.read_text().partition(PLACER)[2]
    rows = re.findall(r"\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|", text)
    documented = {name: (its, set(re.findall(r"`(\w+)`", labels))) for name, its, labels, _ in rows}
    shared = set(re.findall(r"`((?:bridge|workqueue)_\w+)`", text.partition("\n| ")[0]))
    async with running(home, tmp_path) as placing:
        found = await used(home, placing)
    exported = {}
    for name, family in found.items():
        if name.startswith(("bridge_", "workqueue_")):
            full = f"{name}_total" if family.type == "counter" else name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            exported[full] = (kind(family), labels)
    own = {name: it for name, it in exported.items() if name.startswith("bridge_placement_")}
    assert own == documented
    assert exported.keys() - own.keys() == shared
    assert "process_cpu_seconds" in found


async def test_values_after_pods_were_placed(home: Home, tmp_path: Path) -> None:
    async with running(home, tmp_path) as placing:
        found = await used(home, placing)
    assert value(found, "bridge_placement_leader", lease=LEASE) == 1
    assert value(found, "bridge_placement_leader_transitions_total") == 1
    assert value(found, "bridge_placement_policies", state="valid") == 1
    assert value(found, "bridge_placement_placed_total", policy="p", place="c") == 1
    assert value(found, "bridge_placement_placed_total", policy="p", place=HOME) == 1
    assert value(found, "bridge_placement_pods", policy="p", place=HOME) == 1
    assert value(found, "bridge_placement_pods", policy="p", place="c") == 0  # It has failed.
    assert value(found, "bridge_placement_pods_waiting") == 1
    assert value(found, "bridge_placement_wait_duration_seconds_count") == 2
    assert value(found, "bridge_placement_bind_duration_seconds_count") == 1
    assert value(found, "bridge_up", side="home") == 1
    assert value(found, "bridge_api_requests_total", method="PATCH", code="200") >= 2
    names = {it.labels["name"] for it in found["workqueue_depth"].samples}
    assert names == {"placement", "placement-status"}
    waiting = {it.labels["reason"] for it in found["bridge_placement_pods_waiting"].samples}
    assert {"undecided", "no-room", "refused"} <= waiting


async def test_invalid_policy_is_counted(home: Home, tmp_path: Path) -> None:
    async with running(home, tmp_path) as placing:
        home.policy(namespaces=[])
        await placing.until_value(1, "bridge_placement_policies", state="invalid")


async def test_port_in_use_is_an_error_with_the_next_step(home: Home, tmp_path: Path) -> None:
    ref = KubeconfigRef(write(tmp_path / "home.yaml", kubeconfig(home.api.url)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = MonitoringSettings(taken.getsockname()[1], "127.0.0.1")
        with pytest.raises(PreflightError, match="in use; choose another --port or --address"):
            await process.run_placer(
                ref, "off", monitoring=settings, notify=lambda _: None, stop=asyncio.Event()
            )


def test_names_in_annotations_of_pods_make_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.placement.placer_families.MAX_NAMED", 3)
    assert placement_counters.MAX_NAMED > 3
    state = HomeState()
    spec = {"namespaces": ["default"], "tiers": TIERS}
    names = ["forged", *(f"p{it}" for it in range(5))]
    for name in names[1:]:
        state.policy_changed(None, {"metadata": {"name": name}, "spec": spec})
    for name in names:
        for choice in (HOME, "forged"):
            state.pod_changed(None, _recorded(name, choice))
    found = placed_pods(state)
    assert sum(found.values()) == 12
    assert len(found) <= 4
    assert {policy for policy, _ in found} <= {*names[1:], "other"}
    assert {place for _, place in found} == {HOME, "other"}


def _recorded(policy: str, choice: str) -> Object:
    record = f'{{"policy": "{policy}", "choice": "{choice}"}}'
    meta = {
        "name": f"{policy}-{choice}",
        "uid": f"{policy}-{choice}",
        "annotations": {"cluster-bridge.io/placement": record},
    }
    return {"metadata": meta, "spec": {}, "status": {}}
