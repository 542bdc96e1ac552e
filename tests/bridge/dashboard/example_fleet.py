"""A fleet of remotes at a fake API server: Nodes, pods, and bridges that answer through its proxy.

It is the same each time: names, labels, use and problems follow from the number of a remote or pod.
Tests of the page and the pictures of the documentation use it.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from aiohttp import web

from bridge.dashboard.history import INTERVAL, LENGTH, History, Sample
from tests import objects
from tests.bridge.status import examples
from tests.fakeapi import FakeApi
from translators.object_accessors import Object
from translators.pods.pod_status import CONDITION_ACCEPTED
from translators.timestamps import format_time


class Example(NamedTuple):
    """A remote; memory is in GiB."""

    name: str
    tier: str
    cost: str
    cpu: int
    memory: int
    gpus: int


_REMOTES = (
    Example("berlin-a", "1-owned", "0.02", 448, 1536, 0),
    Example("berlin-b", "1-owned", "0.02", 448, 1536, 0),
    Example("osaka-lab", "1-owned", "0.03", 256, 1024, 48),
    Example("gpu-hall", "1-owned", "0.05", 384, 3072, 64),
    Example("edge-north", "1-owned", "0.04", 64, 256, 0),
    Example("aws-frankfurt", "2-reserved", "0.09", 640, 2560, 0),
    Example("aws-dublin", "2-reserved", "0.09", 640, 2560, 0),
    Example("gcp-belgium", "2-reserved", "0.08", 480, 1920, 8),
    Example("gcp-finland", "2-reserved", "0.08", 480, 1920, 0),
    Example("azure-north", "2-reserved", "0.10", 320, 1280, 0),
    Example("aws-oregon", "3-on-demand", "0.21", 1024, 4096, 0),
    Example("aws-virginia", "3-on-demand", "0.20", 1024, 4096, 32),
    Example("gcp-iowa", "3-on-demand", "0.19", 768, 3072, 0),
    Example("gcp-tokyo", "3-on-demand", "0.24", 768, 3072, 0),
    Example("azure-west", "3-on-demand", "0.22", 320, 1280, 0),
    Example("azure-texas", "3-on-demand", "0.22", 512, 2048, 0),
    Example("ovh-gravelines", "3-on-demand", "0.15", 256, 1024, 0),
    Example("hetzner-1", "3-on-demand", "0.12", 256, 1024, 0),
    Example("spot-a", "4-spot", "0.04", 512, 2048, 24),
    Example("spot-b", "4-spot", "0.04", 512, 2048, 0),
)
_APPS = ("checkout", "catalog", "search", "render", "train", "ingest", "mailer", "billing", "api")
_NAMESPACES = ("shop", "media", "research", "data", "platform", "payments")
#: The remote that is away, one that is slow, one that is cordoned.
AWAY, SLOW, CORDONED = "aws-dublin", "gcp-finland", "edge-north"
#: Markup in the message of a rejected pod: a page that parses it would run it.
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


def names(remotes: int) -> list[str]:
    """The names of the first remotes."""
    return [it.name for it in _REMOTES[:remotes]]


def put_fleet(api: FakeApi, *, remotes: int, pods: int) -> None:
    """Puts Nodes and pods, and serves the bridges."""
    for number in range(3):
        api.put(_home_node(f"home-{number + 1}"))
    for it in _REMOTES[:remotes]:
        api.put(virtual_node(it))
    for number in range(pods):
        _put_old(api, pod(number, _REMOTES[_place(number, remotes)].name))
    for namespace in _NAMESPACES:
        api.put(objects.service_account("default", namespace))
    api.route("GET", "/api/v1/nodes/*/proxy/*", _answer)


def _put_old(api: FakeApi, obj: Object) -> None:
    """Puts an object with its own time of creation, which the server would replace."""
    moment = obj["metadata"]["creationTimestamp"]
    stored = api.put(obj)
    kind = api.store.registry.of_object(stored)
    known = api.store.find(kind, stored["metadata"]["namespace"], stored["metadata"]["name"])
    assert known is not None
    meta = {**known["metadata"], "creationTimestamp": moment}
    api.store.commit(kind, known, {**known, "metadata": meta})


def _place(number: int, remotes: int) -> int:
    """The remote of a pod: by its cores and its tier."""
    weights = [it.cpu * (5 - int(it.tier[0])) for it in _REMOTES[:remotes]]
    return random.Random(-number).choices(range(remotes), weights)[0]


def virtual_node(remote: Example) -> Object:
    """The Node of a remote."""
    name = remote.name
    found = examples.node(ready=name != AWAY, message=_MESSAGES.get(name, "usable nodes: 12 of 12"))
    found["metadata"]["name"] = name
    found["metadata"]["labels"] |= {
        "cluster-bridge.io/tier": remote.tier,
        "cluster-bridge.io/cost": remote.cost,
    }
    found["spec"] = {"unschedulable": True} if name == CORDONED else {}
    resources = {
        "cpu": str(remote.cpu),
        "memory": f"{remote.memory}Gi",
        "pods": str(remote.cpu * 2),
    }
    if remote.gpus:
        resources["nvidia.com/gpu"] = str(remote.gpus)
    found["status"] |= {"capacity": resources, "allocatable": resources}
    found["metadata"]["annotations"] = {"cluster-bridge.io/options": "{}"}
    return found


_MESSAGES = {AWAY: "the remote's API server does not answer: connection timed out"}


def _home_node(name: str) -> Object:
    resources = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    status = {"capacity": resources, "allocatable": resources}
    return {**objects.node(name), "spec": {}, "status": status}


def pod(number: int, node: str) -> Object:
    """One of the pods; some wait, fail, or are rejected."""
    choice = random.Random(number)
    app = choice.choice(_APPS)
    namespace = _NAMESPACES[len(app) % len(_NAMESPACES)]
    found = objects.pod(f"{app}-{choice.randrange(16**6):06x}-{number:05d}", namespace, node=node)
    age = timedelta(minutes=choice.randrange(4, 9000))
    found["metadata"]["creationTimestamp"] = format_time(datetime.now(UTC) - age)
    memory = choice.choice(("512Mi", "2Gi", "4Gi", "8Gi"))
    requests = {"cpu": choice.choice(("250m", "500m", "1", "2", "4")), "memory": memory}
    if (
        app == "train"
        and choice.random() < 0.7
        and node in ("gpu-hall", "osaka-lab", "aws-virginia", "spot-a")
    ):
        requests["nvidia.com/gpu"] = "1"
    found["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
    return {**found, "status": _status(choice)}


def _status(choice: random.Random) -> Object:
    kind = choice.random()
    running: Object = {"name": "main", "ready": True, "restartCount": choice.choice((0, 0, 0, 1))}
    running |= {"image": "busybox:1", "imageID": "", "state": {"running": {}}}
    ready = [{"type": "Ready", "status": "True"}]
    if kind < 0.94:
        return {"phase": "Running", "containerStatuses": [running], "conditions": ready}
    if kind < 0.965:
        waits: Object = {
            **running,
            "ready": False,
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }
        return {"phase": "Pending", "containerStatuses": [waits]}
    if kind < 0.98:
        ended: Object = {
            **running,
            "ready": False,
            "state": {"terminated": {"reason": "Completed", "exitCode": 0}},
        }
        return {"phase": "Succeeded", "containerStatuses": [ended]}
    if kind < 0.992:
        back = {
            "reason": "CrashLoopBackOff",
            "message": "back-off 5m0s restarting failed container",
        }
        fails: Object = {**running, "ready": False, "restartCount": 14, "state": {"waiting": back}}
        return {"phase": "Running", "containerStatuses": [fails]}
    rejected = {"type": CONDITION_ACCEPTED, "status": "False", "reason": "FieldRefused"}
    return {"phase": "Pending", "conditions": [{**rejected, "message": f"hostPID: {HOSTILE}"}]}


async def _answer(request: web.Request) -> web.Response:
    """A bridge's status or metrics."""
    name = request.path.split("/")[4]
    if request.path.endswith("/metrics"):
        return web.Response(text=_metrics(name, time.time()))
    if not request.path.endswith("/bridge/v1/status"):
        return web.Response(status=404)
    return web.json_response({"name": name, "volumes": None, "bridge": bridge(name)})


def bridge(name: str) -> Object:
    """The state of a bridge."""
    started = format_time(datetime.now(UTC) - timedelta(days=len(name)))
    changes: dict[str, Any] = {"lagSeconds": 18.4 if name == SLOW else 0.1, "started": started}
    found = examples.bridge(**changes)
    found["clusters"]["remote"]["server"] = f"https://{name}.example.com:6443"
    if name == AWAY:
        found["clusters"]["remote"] |= {"watched": False, "error": "connection timed out"}
        message = "remote: pods: connection timed out; trying again"
        moment = format_time(datetime.now(UTC) - timedelta(minutes=3))
        found["errors"] = [
            {"level": "error", "message": message, "count": 7, "first": moment, "last": moment}
        ]
    return found


def _metrics(name: str, now: float) -> str:
    """Counters that grow with the time."""
    seed = sum(name.encode())
    started = now * (seed % 7) / 30
    return "\n".join(
        (
            "# TYPE bridge_pod_start_duration_seconds histogram",
            f"bridge_pod_start_duration_seconds_count {started}",
            f'bridge_reconciles_total{{name="pods",result="failure"}} {now * (name == AWAY) / 5}',
            f'bridge_relay_bytes_total{{direction="in"}} {now * (seed % 11) * 40_000}',
        )
    )


def past_hour(remotes: int, pods: int) -> History:
    """An hour of samples: a burst of pods, and the loss of one remote near the end."""
    history, choice = History(), random.Random(1)
    counts = Counter(_place(number, remotes) for number in range(pods))
    now = time.time()
    for at in range(LENGTH - 1):
        samples = {
            name: _sample(number, at, counts[number], choice)
            for number, name in enumerate(names(remotes))
        }
        history.add(now - (LENGTH - 1 - at) * INTERVAL, samples)
    return history


def _sample(number: int, at: int, pods: int, choice: random.Random) -> Sample:
    """The count ends at the present one; later remotes get their pods later."""
    name = _REMOTES[number].name
    burst = 1 / (1 + math.exp((90 + 4 * number - at) / 8)) if number >= 5 else 0.85
    ripple = 0.05 * math.sin((at - LENGTH) / 14) * (1 - at / LENGTH)
    count = pods * (0.3 + 0.7 * burst + ripple) if number >= 5 else pods * (1 + ripple)
    started = max(0.0, 1.6 * math.exp(-(((at - 90 - 4 * number) / 14) ** 2)) + choice.random() / 9)
    is_away = name == AWAY and at > 226
    lag = 18.0 if is_away else choice.random() / 4 + 3.5 * math.exp(-(((at - 120) / 12) ** 2))
    errors = 0.3 if is_away else (0.02 if choice.random() < 0.03 else 0.0)
    relay = (number % 5) * 350_000 * (1 + 0.5 * math.sin(at / 20 + number) + choice.random() / 3)
    return round(count), lag, started, errors, relay
