"""Long-lived streams through a relay: a WebSocket, and gRPC over HTTP/2, in both directions.

The clients run in this process, at the address and port that the bridge publishes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.util
import io
import json
import queue
import random
import time
import zipfile
from pathlib import Path

import aiohttp
import grpc
import pytest

from e2e import bridge_image
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged
from e2e.kubectl import Json, wait_for
from e2e.test_relay import (
    all_ready,
    apart,  # noqa: F401  # a fixture
    slices,
)

#: Number of messages, and the size of the largest: 30 MB in each direction.
MESSAGES, LARGEST = 120, 512 * 1024
#: Concurrent calls on one connection.
CALLS = 200

#: The bridge's own image has Python and aiohttp.
_SOCKETS = """
import asyncio
from aiohttp import web

async def serve(request):
    socket = web.WebSocketResponse(max_msg_size=0)
    await socket.prepare(request)

    async def tick():
        number = 0
        while True:
            await asyncio.sleep(0.1)
            number += 1
            await socket.send_str(str(number))

    ticking = asyncio.create_task(tick())
    try:
        async for message in socket:
            await socket.send_bytes(message.data)
    finally:
        ticking.cancel()
    return socket

app = web.Application()
app.add_routes([web.get("/", serve)])
web.run_app(app, port=8080)
"""
_POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  nodeSelector: {kubernetes.io/hostname: THE-NODE}
  tolerations: [{key: cluster-bridge.io/virtual-node, operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: IMAGE
      imagePullPolicy: IfNotPresent
      command: [/usr/local/bin/python3, -c, SCRIPT]
      ports: [{name: serving, containerPort: 8080}]
      readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
      volumeMounts: [{name: packages, mountPath: /packages}]
  volumes: [{name: packages, configMap: {name: packages, optional: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {selector: {app: NAME}, ports: [{port: 80, targetPort: serving}]}
---
"""


def serving(node: str, name: str, image: str, script: str) -> str:
    """A pod on the node that runs this server program, and its Service."""
    text = _POD.replace("NAME", name).replace("THE-NODE", node).replace("IMAGE", image)
    return text.replace("SCRIPT", json.dumps(script))


@pytest.fixture(scope="module")
def python(clusters: dict[str, Cluster]) -> str:
    """An image with Python and aiohttp, loaded into the remote's node."""
    return bridge_image.load(clusters["remote"], settings_from_environment().cache, silent)


@pytest.mark.join("--network=relay")
def test_websocket_is_bidirectional_and_long_lived(bridged: Bridged, python: str) -> None:
    """Sent messages are echoed while the server also sends its own; then the stream is silent
    except for pings, through changes of its Service."""
    bridged.apply(serving(bridged.node, "sockets", python, _SOCKETS))
    all_ready(bridged, 1)
    url = f"http://{where(bridged)}/"

    async def talk() -> None:
        got, ticks = asyncio.Queue[bytes](), [0]

        async def listen(socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    got.put_nowait(message.data)
                else:
                    assert int(message.data) == ticks[0] + 1, "one is missing"
                    ticks[0] += 1

        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, max_msg_size=0) as socket,
            asyncio.TaskGroup() as group,
        ):
            listening = group.create_task(listen(socket))
            chance = random.Random(7)
            sent, came = hashlib.sha256(), hashlib.sha256()
            async with asyncio.timeout(90):
                for _ in range(MESSAGES):
                    data = chance.randbytes(chance.randrange(LARGEST))
                    sent.update(data)
                    await socket.send_bytes(data)
                for _ in range(MESSAGES):
                    came.update(await got.get())
            assert came.hexdigest() == sent.hexdigest()

            no_pods = '{"spec": {"selector": {"app": "none"}}}'
            patch = ("patch", "service", "sockets", "--type=merge", "-p", no_pods)
            await asyncio.to_thread(bridged.kubectl, *patch)
            await asyncio.to_thread(wait_for, lambda: not slices(bridged), "no pod is behind it")
            before = ticks[0]
            await asyncio.sleep(12)  # longer than the bridge keeps the listener after that
            assert ticks[0] > before + 60
            await socket.send_bytes(b"still there")
            async with asyncio.timeout(10):
                assert await got.get() == b"still there"
            await socket.close()
            await listening
            assert socket.close_code == aiohttp.WSCloseCode.OK

    asyncio.run(talk())


#: A gRPC server for any method: each message of a call is echoed as it arrives.
_CALLS = """
import asyncio, sys
sys.path.insert(0, "/packages/packages.zip")
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2 import events

class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        self.http = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.http.initiate_connection()
        self.held, self.ended = {}, set()
        self.flush()

    def data_received(self, data):
        for event in self.http.receive_data(data):
            stream = getattr(event, "stream_id", None)
            if isinstance(event, events.RequestReceived):
                head = [(":status", "200"), ("content-type", "application/grpc")]
                self.http.send_headers(stream, head)
                self.held[stream] = bytearray()
            elif isinstance(event, events.DataReceived):
                self.held[stream] += event.data
                self.http.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, events.StreamEnded):
                self.ended.add(stream)
            elif isinstance(event, events.StreamReset):
                self.held.pop(stream, None)
        for stream, held in list(self.held.items()):
            while held:
                window = self.http.local_flow_control_window(stream)
                size = min(window, self.http.max_outbound_frame_size, len(held))
                if size <= 0:
                    break
                self.http.send_data(stream, bytes(held[:size]))
                del held[:size]
            if stream in self.ended and not held:
                self.http.send_headers(stream, [("grpc-status", "0")], end_stream=True)
                del self.held[stream]
        self.flush()

    def flush(self):
        self.transport.write(self.http.data_to_send())

async def main():
    server = await asyncio.get_running_loop().create_server(Server, "0.0.0.0", 8080)
    await server.serve_forever()

asyncio.run(main())
"""


def packages() -> str:
    """A ConfigMap with the server's imports, which no image has."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("h2", "hpack", "hyperframe"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            folder = Path(spec.origin).parent
            for file in folder.rglob("*.py"):
                archive.write(file, file.relative_to(folder.parent))
    found: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "packages"},
        "binaryData": {"packages.zip": base64.b64encode(packed.getvalue()).decode()},
    }
    return json.dumps(found) + "\n---\n"


@pytest.mark.join("--network=relay")
def test_grpc_streams_and_concurrent_calls_share_one_connection(
    bridged: Bridged, python: str
) -> None:
    """A stream that answers each message before the next one, and many concurrent calls, one with a
    large body."""
    bridged.apply(packages() + serving(bridged.node, "calls", python, _CALLS))
    all_ready(bridged, 1)
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(where(bridged), limits) as channel:
        messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = channel.stream_stream("/test/Talk")(iter(messages.get, None), timeout=120)
        for number in range(50):
            messages.put(b"%d" % number)
            assert next(stream) == b"%d" % number

        call = channel.unary_unary("/test/Call")
        answers = [call.future(b"%d" % number, timeout=60) for number in range(CALLS)]
        assert [it.result() for it in answers] == [b"%d" % number for number in range(CALLS)]
        large = random.Random(7).randbytes(20_000_000)
        assert call(large, timeout=60) == large

        time.sleep(12)
        messages.put(b"still there")
        assert next(stream) == b"still there"
        messages.put(None)
        assert list(stream) == []
        assert stream.code() is grpc.StatusCode.OK


def where(bridged: Bridged) -> str:
    """The published address and port of the Service."""
    found: list[Json] = wait_for(lambda: slices(bridged), "an endpoint")
    return f"{found[0]['endpoints'][0]['addresses'][0]}:{found[0]['ports'][0]['port']}"
