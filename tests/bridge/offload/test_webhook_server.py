"""The webhook's server against callers that are not an API server."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest

from bridge.certificates.tls_key_pair import server_context
from bridge.offload import webhook_server
from bridge.offload.webhook_certificate import create_certificate
from bridge.offload.webhook_configuration import MUTATE_PATH
from bridge.offload.webhook_server import AdmissionServer
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi
from translators import offload_admission_patch
from translators.object_accessors import Object
from translators.ownership_labels import LABEL_VIRTUAL

SOON = 10.0


@dataclass
class Webhook:
    """A server that listens, with a namespace ``shop`` that is offloaded."""

    port: int
    context: ssl.SSLContext

    async def post(self, body: bytes) -> tuple[int, bytes]:
        url = f"https://127.0.0.1:{self.port}{MUTATE_PATH}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=io.BytesIO(body), ssl=self.context) as answer,
        ):
            return answer.status, await answer.read()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)


@pytest.fixture
async def webhook(home_api: FakeApi, client_for: object) -> AsyncIterator[Webhook]:
    labels = {offload_admission_patch.LABEL_OFFLOAD: "remote-only"}
    shop = {"name": "shop", "labels": labels}
    home_api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": shop})
    assert callable(client_for)
    home: KubeClient = await client_for(home_api, "home")
    server = AdmissionServer(home)
    pair = create_certificate("127.0.0.1")
    port = await server.start("127.0.0.1", 0, server_context(pair, client_ca=""))
    informer = asyncio.create_task(server.namespaces.run())
    await server.namespaces.synced.wait()
    try:
        yield Webhook(port, ssl.create_default_context(cadata=pair.certificate.decode()))
    finally:
        informer.cancel()
        await asyncio.gather(informer, return_exceptions=True)
        await server.stop()


def review(spec: Object) -> bytes:
    request = {"uid": "7", "namespace": "shop", "object": {"spec": spec}}
    return json.dumps({"kind": "AdmissionReview", "request": request}).encode()


def affinity(terms: list[Object]) -> Object:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}}


async def is_served(webhook: Webhook) -> bool:
    """Whether a pod gets its patch."""
    code, body = await webhook.post(review({}))
    return code == 200 and b'"JSONPatch"' in body


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"request":' * 100_000,
        review({"tolerations": []}).replace(b"[]", b"[" * 500 + b"]" * 500),
        b'{"request": {"uid": "7", "namespace": "shop", "object": {"spec": 1}}}',
        b'{"request": {"uid": "7", "namespace": %s}}' % (b"[" * 1000 + b"]" * 1000),
        b'{"request": {"uid": "7", "namespace": 7}}',
        b'{"request": {"uid": %s, "namespace": "shop"}}' % (b"[" * 1000 + b"]" * 1000),
        b'"\\ud800"',
        b"",
    ],
)
async def test_body_that_is_no_review_gets_400(
    webhook: Webhook, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await webhook.post(body))[0] == 400
    assert not [line for line in caplog.records if line.exc_info or line.levelname == "ERROR"]
    assert await is_served(webhook)


@pytest.mark.parametrize("namespace", [{}, {"namespace": ""}, {"namespace": "unknown"}])
async def test_pod_of_no_known_namespace_is_admitted_unmodified(
    webhook: Webhook, namespace: Object
) -> None:
    request = {"uid": "7", **namespace, "object": {"spec": {}}}
    code, body = await webhook.post(json.dumps({"request": request}).encode())
    assert (code, json.loads(body)["response"]) == (200, {"uid": "7", "allowed": True})


async def test_review_above_the_size_limit_gets_413(webhook: Webhook) -> None:
    reader, writer = await webhook.connect()
    length = webhook_server.MAX_REVIEW_BYTES + 1
    writer.write(
        f"POST {MUTATE_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.transport.abort()
    reader, writer = await webhook.connect()
    writer.write(
        f"POST {MUTATE_PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    writer.write(b"%x\r\n%b\r\n" % (length, bytes(length)))
    assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.transport.abort()


async def test_unfinished_bodies_hold_bounded_memory(webhook: Webhook) -> None:
    size = webhook_server.MAX_REVIEW_BYTES - 1
    head = f"POST {MUTATE_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {size + 1}\r\n\r\n".encode()
    ends = []
    for _ in range(webhook_server.MAX_HELD_BYTES // size + 3):
        reader, writer = await webhook.connect()
        ends.append(asyncio.create_task(_wait_closed(reader, writer)))
        writer.write(head + bytes(size))
    async with asyncio.timeout(SOON):
        while sum(it.done() for it in ends) < 3:  # noqa: ASYNC110  # of sockets
            await asyncio.sleep(0.01)
    assert await is_served(webhook), "a small review ends none, and is not ended"
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)


async def _wait_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Returns when the server has closed the connection, and closes it when cancelled."""
    try:
        with contextlib.suppress(ConnectionError):
            await reader.read()
    finally:
        writer.transport.abort()


async def test_pod_that_would_have_a_huge_patch_is_admitted_unmodified(webhook: Webhook) -> None:
    code, body = await webhook.post(review(affinity([{}] * 500_000)))
    assert code == 200
    assert len(body) < 1000
    code, body = await webhook.post(review(affinity([{}] * 100)))
    assert b'"JSONPatch"' in body


async def test_other_paths_and_methods_are_rejected(webhook: Webhook) -> None:
    async with aiohttp.ClientSession(f"https://127.0.0.1:{webhook.port}") as session:
        for method, path, expected in (
            ("GET", "/livez", 200),
            ("GET", "/readyz", 200),
            ("GET", MUTATE_PATH, 405),
            ("POST", "/livez", 405),
            ("GET", "/", 404),
            ("GET", f"{MUTATE_PATH}/x", 404),
        ):
            async with session.request(method, path, ssl=webhook.context) as answer:
                assert answer.status == expected, (method, path)


async def test_many_tolerations_are_processed_at_once(webhook: Webhook, home_api: FakeApi) -> None:
    other = {"name": "local", "labels": {offload_admission_patch.LABEL_OFFLOAD: "local-only"}}
    home_api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": other})
    tolerations = [
        {"key": key, "value": str(number)}
        for number in range(20_000)
        for key in (LABEL_VIRTUAL, "a")
    ]
    body = review({"tolerations": tolerations}).replace(b'"shop"', b'"local"')
    async with asyncio.timeout(SOON):
        while b'"JSONPatch"' not in (await webhook.post(body))[1]:  # noqa: ASYNC110  # of a watch
            await asyncio.sleep(0.01)
