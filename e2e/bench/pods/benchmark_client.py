"""A client of an API server for measuring: no retries, no checks, an error ends the run."""

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

#: Connections to one server: enough that it is never idle, as few as a busy client would have.
CONNECTIONS = 64
#: The user agent of the load, and of those who watch it.
AGENT = "cluster-bridge-bench"
_PATCH = {"Content-Type": "application/strategic-merge-patch+json"}
_JSON = {"Content-Type": "application/json"}


class ApiFailed(Exception):
    """The API server said no; with what it said, and its status."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class BenchmarkClient:
    """One API server, for requests at `CONNECTIONS` at a time."""

    session: aiohttp.ClientSession
    server: str
    ssl: ssl.SSLContext

    def url(self, path: str) -> str:
        """The whole address of a path."""
        return self.server + path

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """One request; the decoded answer. Raises ApiFailed."""
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
        """One request whose answer nobody wants, at the least cost: the load takes processor time
        from what is measured. Raises ApiFailed."""
        async with self.session.request(
            method, url, data=body, headers=_JSON, ssl=self.ssl, allow_redirects=False
        ) as answer:
            raw = await answer.read()
        if answer.status >= 300:
            raise ApiFailed(f"{method} {url.path}: {answer.status} {raw[:300]!r}", answer.status)

    async def version(self, path: str, query: Mapping[str, str]) -> str:
        """The resource version of a list that is made now. Raises ApiFailed."""
        listed = await self.call("GET", path, query={**query, "limit": "1"})
        return str(listed["metadata"]["resourceVersion"])

    async def watch(
        self, path: str, query: Mapping[str, str], *, since: str | None = None
    ) -> AsyncIterator[Any]:
        """The events after ``since``, or else after a list that is made now, without end. Raises
        ApiFailed.

        A server ends the watch of a client that does not keep up; it goes on where it was.
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
    """A client with the first cluster and user of a kubeconfig that has its keys in it or beside
    it, as those of `e2e.clusters` have."""
    server, context = credential(Path(kubeconfig))
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, headers={"User-Agent": agent}) as session:
        yield BenchmarkClient(session, server, context)


def credential(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """The first cluster's server and the first user's certificate, for TLS connections."""
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
