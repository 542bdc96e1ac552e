"""Calls the virtual node's kubelet API directly, with a caller and path that the test chooses.

Requests are written by hand, since a client library would normalise their paths.
"""

from __future__ import annotations

import base64
import http
import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.clusters.cluster import Cluster
from e2e.kubectl import get_one

#: Seconds for one request.
PATIENCE = 30.0


@dataclass(frozen=True)
class Credentials:
    """Files with the content of a kubeconfig: home's CA, and an administrator's certificate."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, cluster: Cluster, folder: Path) -> Credentials:
        """Writes those of the cluster's kubeconfig into the folder."""
        config: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text())
        there, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        found = cls(folder / "ca.crt", folder / "admin.crt", folder / "admin.key")
        for path, encoded in (
            (found.ca, there["certificate-authority-data"]),
            (found.certificate, user["client-certificate-data"]),
            (found.key, user["client-key-data"]),
        ):
            path.write_bytes(base64.b64decode(encoded))
        return found


def endpoint(home: Cluster, node: str) -> tuple[str, int]:
    """The address and port at which home's API server reaches the node's kubelet API."""
    status = get_one(home, "node", node)["status"]
    addresses = {it["type"]: it["address"] for it in status["addresses"]}
    return addresses["InternalIP"], status["daemonEndpoints"]["kubeletEndpoint"]["Port"]


def status_of(
    at: tuple[str, int],
    target: str,
    *,
    method: str = "GET",
    token: str = "",
    headers: Mapping[str, str] | None = None,
    pair: tuple[Path, Path] | None = None,
) -> tuple[int, str]:
    """Status code and text of the response; the text is "" after a change of protocol. Raises
    OSError without a response."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if pair is not None:
        context.load_cert_chain(*pair)
    lines = [f"{method} {target} HTTP/1.1", f"Host: {at[0]}"]
    sent = {"Connection": "close", **(headers or {})}
    lines += [f"{name}: {value}" for name, value in sent.items()]
    lines += [f"Authorization: Bearer {token}"] if token else []
    with (
        socket.create_connection(at, PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=at[0]) as tls,
    ):
        tls.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = http.client.HTTPResponse(tls, method=method)
        answer.begin()
        if answer.status == http.HTTPStatus.SWITCHING_PROTOCOLS:
            return answer.status, ""
        return answer.status, answer.read().decode()


def is_signed_by(at: tuple[str, int], ca: Path, name: str) -> bool:
    """Whether the CA signed the server's certificate for the name or address."""
    context = ssl.create_default_context(cafile=ca)
    try:
        with (
            socket.create_connection(at, PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=name),
        ):
            return True
    except ssl.SSLCertVerificationError:
        return False
