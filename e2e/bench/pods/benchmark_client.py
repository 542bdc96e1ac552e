"""An API client for benchmarks: no retries, no checks; an error ends the run."""

from __future__ import annotations

import ssl
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml
from yarl import URL

#: Connections to one server: enough to keep it busy, as few as a busy client would use.
CONNECTIONS = 64
#: The user agent of the load and its watches.
AGENT = "cluster-bridge-bench"
_PATCH = {"Content-Type": "application/strategic-merge-patch+json"}
_JSON = {"Content-Type": "application/json"}


class ApiFailed(Exception):
    """The API server rejected a request; with its message and status code."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class BenchmarkClient:
    """A client of one API server, with `CONNECTIONS` connections."""

    session: aiohttp.ClientSession
    server: str
    ssl: ssl.SSLContext

    def url(self, path: str) -> str:
        """The URL of a path."""
        return self.server + path

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Sends a request; the decoded response. Raises ApiFailed."""
        async with self.session.request(
            method,
            self.url(path),
            params=query,
            data=None if body is None else orjson.dumps(body),
            headers=_PATCH if method == "PATCH" else _JSON,
            ssl=self.ssl,
        ) as answer:
            raw = await answer.read()
        if answer.status >= 300:
            raise ApiFailed(f"{method} {path}: {answer.status} {raw[:300]!r}", answer.status)
        return orjson.loads(raw)

    async def send(self, method: str, url: URL, body: bytes) -> None:
        """Sends a request and discards the response, at minimal cost: the load competes with the
        measured processes for CPU time. Raises ApiFailed."""
        async with self.session.request(
            method, url, data=body, headers=_JSON, ssl=self.ssl, allow_redirects=False
        ) as answer:
            raw = await answer.read()
        if answer.status >= 300:
            raise ApiFailed(f"{method} {url.path}: {answer.status} {raw[:300]!r}", answer.status)

    async def version(self, path: str, query: Mapping[str, str]) -> str:
        """The current resource version of a list. Raises ApiFailed."""
        listed = await self.call("GET", path, query={**query, "limit": "1"})
        return str(listed["metadata"]["resourceVersion"])

    async def watch(
        self, path: str, query: Mapping[str, str], *, since: str | None = None
    ) -> AsyncIterator[Any]:
        """Endless events after ``since``, or after the current state. Raises ApiFailed.

        Resumes a watch that the server ended because the client was too slow.
        """
        version = since or await self.version(path, query)
        while True:
            async with self.session.get(
                self.url(path),
                params={**query, "watch": "1", "resourceVersion": version},
                ssl=self.ssl,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as answer:
                async for line in answer.content:
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiFailed(f"watch {path}: {event['object'].get('message')}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event


@asynccontextmanager
async def connect(kubeconfig: Path | str, *, agent: str = AGENT) -> AsyncIterator[BenchmarkClient]:
    """A client with the first cluster and user of a kubeconfig, with inline keys or files."""
    server, context = credential(Path(kubeconfig))
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, headers={"User-Agent": agent}) as session:
        yield BenchmarkClient(session, server, context)


def credential(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """The first cluster's server, and a TLS context with the first user's certificate."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority").decode())
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(_pem(user, "client-certificate") + b"\n" + _pem(user, "client-key"))
        pair.flush()
        context.load_cert_chain(pair.name)
    return cluster["server"], context


def _pem(entry: Mapping[str, str], field: str) -> bytes:
    if data := entry.get(f"{field}-data"):
        return b64decode(data)
    return Path(entry[field]).read_bytes()
