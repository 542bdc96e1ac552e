"""Two fake clusters with fixed objects, and a bridge of the product between them.

UIDs follow from names, so that names which the bridge derives from UIDs are the same in each run.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp
import yaml
from aiohttp import web

from sync.kube.api_resources import NAMESPACES, NODES, Object, Resource
from tests.fakeapi import FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.golden.product import PATIENCE, Finished, Product, Running
from tests.golden.redaction import Redaction

#: The virtual node, the name of the home cluster, and the bridge's address.
NODE, HOME, ADDRESS = "burst", "berlin", "127.0.0.1"
#: The credential of the bridge, which must not appear in a golden file.
CANARY = "canary-4711"
INPUTS = Path(__file__).parent / "inputs"
#: Messages of the inputs, which the bridge passes on unchanged.
KEPT_TEXTS = frozenset({"a text", "Pulled it", "The node was low on resource: memory. "})
#: A bridge is idle after this many samples, taken every `SAMPLE` seconds, without a request.
SAMPLES, SAMPLE = 24, 0.05
_Value = TypeVar("_Value")
_UIDS = uuid.UUID("5f0f3ac1-7d52-4a3b-9f55-0c6d6f1f9e00")
#: Requests that an idle bridge makes.
_IDLE = ("/leases/", "/tokenreviews", "/subjectaccessreviews")


def read_input(name: str) -> list[Object]:
    """The documents of a file of `inputs`."""
    text = (INPUTS / f"{name}.yaml").read_text(encoding="utf-8")
    return [document for document in yaml.safe_load_all(text) if document]


class World:
    """Both clusters, and the product."""

    def __init__(self, home: FakeApi, remote: FakeApi, product: Product) -> None:
        self.home = home
        self.remote = remote
        self.product = product
        self.files: dict[str, Path] = {}
        for side, api in (("home", home), ("remote", remote)):
            content = kubeconfig(api.url, user={"token": CANARY}, context=side)
            self.files[side] = write(product.folder / f"{side}.yaml", content)
        home.route("GET", f"/api/v1/nodes/{NODE}/proxy/*", self.forward_node_proxy)
        self._bridge: Running | None = None

    @property
    def sides(self) -> list[str]:
        """The options that name both clusters."""
        files = self.files
        return ["--kubeconfig", str(files["remote"]), "--home-kubeconfig", str(files["home"])]

    @property
    def home_side(self) -> list[str]:
        """The options that name home."""
        return ["--home-kubeconfig", str(self.files["home"])]

    @property
    def remote_side(self) -> list[str]:
        """The options that name the remote."""
        return ["--kubeconfig", str(self.files["remote"])]

    async def forward_node_proxy(self, request: web.Request) -> web.Response:
        """Forwards a request of the home API server to the kubelet API, as its node proxy does."""
        path = request.path.partition("/proxy")[2]
        async with self._kubelet_response(path, request.query) as response:
            kind = response.headers.get("Content-Type", "").partition(";")[0] or "text/plain"
            body = await response.read()
            return web.Response(status=response.status, body=body, content_type=kind)

    async def get(self, path: str) -> str:
        """The response of the kubelet API."""
        async with self._kubelet_response(path) as response:
            return await response.text()

    @asynccontextmanager
    async def _kubelet_response(
        self, path: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        port = self.home.get(NODES, NODE)["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://{ADDRESS}:{port}{path}"
        headers = {"Authorization": "Bearer someone"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(url, params=query, ssl=False) as response,
        ):
            yield response

    def put(self, *names: str) -> None:
        """Puts the objects of these files of `inputs` into home."""
        for name in names:
            for obj in read_input(name):
                self.home.put(obj)

    @asynccontextmanager
    async def bridge(self, *options: str) -> AsyncIterator[Running]:
        """Runs a bridge until the block ends; it is idle when the block begins."""
        fixed = ["--name", NODE, "--home-name", HOME, "--address", ADDRESS, "--port", "0"]
        async with self.product.running("join", *self.sides, *fixed, *options) as running:
            self._bridge = running
            await self.until(lambda: self.home.find(NODES, NODE) is not None)
            await self.settle()
            yield running
        self._bridge = None

    async def run(self, *args: str) -> Finished:
        """Runs a command of the product."""
        return await self.product.run(*args)

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition; fails if the bridge exits."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    if self._bridge is not None and self._bridge.has_exited:
                        raise AssertionError(self._bridge.output)
                    await asyncio.sleep(SAMPLE)
        except TimeoutError:
            log = self._bridge.output if self._bridge is not None else ""
            raise AssertionError(f"not true within {PATIENCE} s: {log}") from None

    async def settle(self) -> None:
        """Waits until the bridge is idle: it sleeps, and requests nothing."""
        assert self._bridge is not None
        samples, before = 0, -1
        async with asyncio.timeout(PATIENCE):
            while samples < SAMPLES:
                await asyncio.sleep(SAMPLE)
                requests = self._requests()
                samples = samples + 1 if requests == before and self._bridge.is_asleep() else 0
                before = requests

    def _requests(self) -> int:
        return sum(
            not any(part in entry.path for part in _IDLE)
            for api in (self.home, self.remote)
            for entry in api.log
        )

    def objects(self, side: str, *resources: Resource) -> Object:
        """The objects of these resources, by kind, namespace and name."""
        api = self.home if side == "home" else self.remote
        return {
            f"{resource.kind} {_full_name(obj)}": obj
            for resource in resources
            for obj in api.objects(resource)
        }

    def redact(self, value: _Value, **more: str) -> _Value:
        """The value without what differs between two runs; ``more`` are other words that do."""
        words = {
            **more,
            self.home.url: "<home>",
            self.remote.url: "<remote>",
            str(self.product.folder): "<folder>",
            socket.gethostname(): "<host>",
            self.product.version(): "<version>",
        }
        redacted: _Value = Redaction(words, kept=KEPT_TEXTS).apply(value)
        return redacted


@asynccontextmanager
async def world(tree: Path, folder: Path) -> AsyncIterator[World]:
    """Two clusters with one node and what every cluster has, and the product of the tree."""
    async with AsyncExitStack() as stack:
        home, remote = FakeApi(), FakeApi()
        for side, api in (("home", home), ("remote", remote)):
            _fix_uids(api, side)
            await stack.enter_async_context(api)
        for obj in read_input("home-cluster"):
            home.put(obj)
        for obj in read_input("remote-cluster"):
            remote.put(obj)
            if obj["kind"] == "Node":
                remote.update(NODES, obj["metadata"]["name"], {"spec": {"taints": None}})
        yield World(home, remote, Product(tree, folder))


def _fix_uids(api: FakeApi, side: str) -> None:
    """Sets UIDs that follow from the object, also of those that the cluster has at its start."""
    seen: Counter[str] = Counter()

    def new_uid(obj: Object) -> str:
        name = f"{side} {obj['kind']} {_full_name(obj)}"
        seen[name] += 1
        return str(uuid.uuid5(_UIDS, f"{name} {seen[name]}"))

    api.store.new_uid = new_uid
    kind = api.store.registry.of(NAMESPACES)
    for obj in api.store.all(kind, None):
        metadata = {**obj["metadata"], "uid": new_uid(obj)}
        api.store.commit(kind, obj, {**obj, "metadata": metadata})


def _full_name(obj: Object) -> str:
    namespace = obj["metadata"].get("namespace")
    return f"{namespace}/{obj['metadata']['name']}" if namespace else obj["metadata"]["name"]
