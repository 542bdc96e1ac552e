"""The compared paths to a pod, and the clients that measure them.

A `StreamPath` is a pod and the API server that serves its streams. The same calls use each path.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlencode, urlsplit

from kubernetes import config
from websocket import WebSocket, create_connection

from e2e.clusters.cluster import Cluster

#: Seconds to wait for a response on a busy machine.
PATIENCE = 60.0


@dataclass(frozen=True)
class StreamPath:
    """A pod and the cluster whose API server serves its streams."""

    name: str
    cluster: Cluster
    namespace: str
    pod: str

    @cached_property
    def _access(self) -> tuple[str, ssl.SSLContext]:
        made = config.new_client_from_config(str(self.cluster.kubeconfig)).configuration  # type: ignore[no-untyped-call]
        context = ssl.create_default_context(cafile=made.ssl_ca_cert)
        context.load_cert_chain(made.cert_file, made.key_file)
        return made.host, context

    def path(self, subresource: str, query: list[tuple[str, str]]) -> str:
        """The path of one of the pod's streams."""
        base = f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/{subresource}"
        return f"{base}?{urlencode(query)}"

    @contextlib.contextmanager
    def connection(self) -> Iterator[http.client.HTTPSConnection]:
        """A connection to the API server for consecutive requests."""
        host, context = self._access
        made = http.client.HTTPSConnection(urlsplit(host).netloc, timeout=PATIENCE, context=context)
        with contextlib.closing(made):
            yield made

    @contextlib.contextmanager
    def websocket(
        self, subresource: str, query: list[tuple[str, str]], protocol: str
    ) -> Iterator[WebSocket]:
        """A WebSocket to one of the pod's streams."""
        host, context = self._access
        made = create_connection(
            host.replace("https:", "wss:") + self.path(subresource, query),
            subprotocols=[protocol],
            sslopt={"context": context},
            timeout=PATIENCE,
        )
        try:
            yield made
        finally:
            made.shutdown()  # type: ignore[no-untyped-call]  # `close` does not close the socket

    @contextlib.contextmanager
    def exec(self, *command: str, stdin: bool = False) -> Iterator[WebSocket]:
        """An exec with one channel per stream, as used by kubectl."""
        query = [("container", "main"), ("stdout", "true"), ("stdin", str(stdin).lower())]
        query += [("command", argument) for argument in command]
        with self.websocket("exec", query, "v5.channel.k8s.io") as made:
            yield made
