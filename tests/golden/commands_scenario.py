"""The structured output and exit code of each command that reads two clusters."""

from __future__ import annotations

import asyncio
import json
import re
import tarfile
from typing import Any

import aiohttp
import yaml

from sync.kube.api_resources import NODES
from sync.kube.api_resources import PODS as REMOTE_PODS
from tests.golden import pods_scenario
from tests.golden.product import PATIENCE
from tests.golden.worlds import NODE, World

_UID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_RANDOM_NAME = re.compile(r"\bnew-[0-9a-f]{5}\b")
_REVISION = re.compile(r'("path": "metadata.resourceVersion".*?"(?:before|after)": )"\d+"')
_PAGE = re.compile(r"http://127\.0\.0\.1:\d+/\S*/")
#: The shape of the page's data has settled after so many equal responses.
_EQUAL_SHAPES = 5
#: Commands that run at the same time.
_AT_ONCE = 3
#: Pods of which the commands report.
PODS = (
    *("probes", "environment", "security", "volumes-of-references", "waits-for-reference"),
    *("rejected-host-network", "job-never", "job-on-failure"),
)
#: A pod that the home cluster does not have, for `bridge explain --file`.
_MANIFEST = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "new", "namespace": "shop"},
    "spec": {
        "selector": {"matchLabels": {"app": "new"}},
        "template": {
            "metadata": {"labels": {"app": "new"}},
            "spec": {
                "nodeSelector": {"kubernetes.io/arch": "riscv64"},
                "hostPID": True,
                "containers": [{"name": "main", "image": "busybox:1.36"}],
            },
        },
    },
}


async def collect(world: World) -> dict[str, Any]:
    """The outputs before a join, while a bridge runs, and after it."""
    world.put("references")
    pods_scenario.put_pods(world, *PODS)
    outputs: dict[str, Any] = {}
    outputs["check-pre"] = await _json(world, "check", "--pre", NODE, *world.sides)
    outputs["status-without-nodes"] = await _json(world, "status", *world.home_side)
    options = ["--network", "none", "--storage", "none", "--home-api-address", "10.20.0.1:6443"]
    async with world.bridge(*options):
        world.home.update(NODES, NODE, {"spec": {"taints": None}})
        pods_scenario.write_statuses(world)
        await world.settle()
        outputs |= await _of_running_bridge(world)
        outputs["dashboard"] = await _dashboard(world)
        outputs["bug-report"] = await _bug_report(world)
    outputs["prune"] = await _json(world, "prune", *world.remote_side)
    outputs |= await _leave(world)
    return _without_identities(world.redact(outputs))


def _without_identities(value: dict[str, Any]) -> dict[str, Any]:
    """The outputs without UIDs and random names, and without fields that differ in each run."""
    text = _RANDOM_NAME.sub("new-<random>", _UID.sub("<uid>", json.dumps(value)))
    text = _REVISION.sub(r'\1"<revision>"', text)
    found: dict[str, Any] = json.loads(text)
    return found


async def _of_running_bridge(world: World) -> dict[str, Any]:
    manifest = world.product.folder / "new.yaml"
    manifest.write_text(yaml.safe_dump(_MANIFEST), encoding="utf-8")
    home, shop = world.home_side, ["-n", "shop"]
    commands = {
        "status": ["status"],
        "status-of-missing-node": ["status", "missing"],
        "check": ["check", NODE],
        "version": ["version"],
        **{f"explain-{name}": ["explain", f"pod/{name}", *shop] for name in PODS[2:6]},
        "explain-remote-pod": ["explain", "pod/environment", *shop, "--show", "remote"],
        "explain-file": ["explain", "-f", str(manifest), "--node", NODE],
        "explain-missing": ["explain", "pod/missing", *shop],
        "offload-dry-run": ["offload", "shop", "--by", "webhook", "--dry-run"],
        "unoffload-dry-run": ["unoffload", "shop", "--dry-run"],
    }
    writing = {
        "offload": ["offload", "shop", "--by", "webhook", "--node-selector", "pool=a"],
        "offload-list": ["offload"],
        "unoffload": ["unoffload", "shop"],
    }
    turns = asyncio.Semaphore(_AT_ONCE)

    async def run(args: list[str]) -> Any:
        async with turns:
            return await _json(world, *args, *home)

    found = await asyncio.gather(*(run(args) for args in commands.values()))
    outputs = dict(zip(commands, found, strict=True))
    outputs |= {name: await run(args) for name, args in writing.items()}
    for done in outputs.values():
        if "written" in (done["output"] or {}):
            done["output"]["written"] = len(done["output"]["written"])  # lines for people
    outputs["yaml-equals-json"] = await _yaml_equals_json(world, "version", *home)
    return outputs


async def _json(world: World, *args: str) -> Any:
    """The exit code and output; no output is recorded of a command that printed none."""
    done = await world.run(*args, "-o", "json")
    try:
        output = json.loads(done.stdout) if done.stdout else None
    except ValueError:
        raise AssertionError(f"{args}: no JSON: {done.stdout}{done.stderr}") from None
    return {"exitCode": done.code, "output": output}


async def _yaml_equals_json(world: World, *args: str) -> bool:
    as_yaml = await world.run(*args, "-o", "yaml")
    as_json = await world.run(*args, "-o", "json")
    return bool(yaml.safe_load(as_yaml.stdout) == json.loads(as_json.stdout))


async def _dashboard(world: World) -> Any:
    """The shape of the data of the dashboard's page: fields and types, since values change."""
    args = ["dashboard", "--no-open", "--port", "0", *world.home_side]
    async with world.product.running(*args) as serving, aiohttp.ClientSession() as session:
        await world.until(lambda: _PAGE.search(serving.output))
        found = _PAGE.search(serving.output)
        assert found is not None
        shapes = {}
        for path in ("api/v1/fleet", "api/v1/pods/shop/environment/explain"):
            shapes[path] = await _settled_shape(session, found[0] + path)
    return shapes


async def _settled_shape(session: aiohttp.ClientSession, url: str) -> Any:
    """The shape of the response once it no longer changes: the page's data comes bit by bit."""
    seen: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while not seen or seen[-_EQUAL_SHAPES:] != [seen[-1]] * _EQUAL_SHAPES:
            async with session.get(url) as response:
                found = await response.json()
            # The page first lists the nodes, and then counts their pods.
            if all(remote["pods"] is not None for remote in found.get("remotes", [])):
                seen.append(_shape(found))
            await asyncio.sleep(0.3)
    return seen[-1]


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shape(inner) for inner in value[:1]]
    return type(value).__name__


async def _bug_report(world: World) -> Any:
    """The output, and the names of the files in the archive."""
    archive = world.product.folder / "report.tar.gz"
    found = await _json(world, "bug-report", NODE, "-f", str(archive), *world.home_side)
    with tarfile.open(archive) as files:
        names = sorted(name.partition("/")[2] or name for name in files.getnames())
        for member in files.getmembers():
            content = files.extractfile(member)
            assert content is None or b"canary" not in content.read(), member.name
    found["files"] = names
    for file in (found["output"] or {}).get("files", ()):
        file.pop("bytes", None)
    return found


async def _leave(world: World) -> dict[str, Any]:
    """What `bridge leave` leaves in both clusters."""
    for pod in world.remote.objects(REMOTE_PODS):
        if pod["metadata"]["namespace"] == pods_scenario.REMOTE_SHOP:
            name = pod["metadata"]["name"]
            world.remote.remove(REMOTE_PODS, name, pods_scenario.REMOTE_SHOP)
    done = await world.run("leave", NODE, "--yes", "--force", *world.sides)
    remote = pods_scenario.remote_objects(world)
    nodes = [node["metadata"]["name"] for node in world.home.objects(NODES)]
    return {"leave": {"exitCode": done.code, "remote": remote, "homeNodes": nodes}}
