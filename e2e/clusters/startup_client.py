"""An API client for the start of a cluster.

Uses a client certificate and kept connections, one per thread. A request without a response raises
OSError, which a caller that waits for the server treats as "not yet".
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.clusters.certificates import Pair

# A server under full load still answers within this.
TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class StartupClient:
    """The API server at `host`."""

    host: str
    authority: Path
    client: Pair
    port: int = 6443
    _local: threading.local = field(default_factory=threading.local, repr=False, compare=False)
    _open: list[http.client.HTTPSConnection] = field(
        default_factory=list, repr=False, compare=False
    )

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Sends a request; returns the status code and the body, decoded if it is JSON.

        :raises OSError: the server sent no response.
        """
        connection = self._connection()
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json", "Accept": "application/json"},
            )
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise OSError(f"{method} {path}: {error}") from error
        kind = answer.headers.get_content_type()
        return answer.status, json.loads(content) if kind == "application/json" else content

    def ready(self) -> bool:
        """Whether the server reports that it is ready."""
        try:
            return self.request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def exists(self, path: str) -> bool:
        """Whether the object exists."""
        try:
            return self.request("GET", path)[0] == 200
        except OSError:
            return False

    def create_if_absent(self, path: str, body: object) -> bool:
        """Creates the object unless it exists; whether it exists now. False while the server
        rejects it or does not answer."""
        try:
            return self.request("POST", path, body)[0] in {201, 409}
        except OSError:
            return False

    def ready_nodes(self) -> set[str]:
        """The names of the Ready nodes; empty while the server does not answer."""
        try:
            status, answer = self.request("GET", "/api/v1/nodes?resourceVersion=0")
        except OSError:
            return set()
        nodes = answer["items"] if status == 200 else []
        return {node["metadata"]["name"] for node in nodes if _is_ready(node)}

    def close(self) -> None:
        """Closes every thread's connection; no other thread may be in a request."""
        while self._open:
            self._open.pop().close()

    def _connection(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            context = ssl.create_default_context(cafile=str(self.authority))
            context.load_cert_chain(self.client.certificate, self.client.key)
            connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=TIMEOUT, context=context
            )
            self._local.connection = connection
            self._open.append(connection)
        return connection


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
