"""Sends single requests with the token of a kubeconfig, and returns how the API server answers.

For tests of what an account may do: kubectl reads before it writes, and adds fields.
"""

from __future__ import annotations

import base64
import json
import ssl
from typing import Any, NamedTuple

import urllib3
import yaml

from e2e.clusters.cluster import Cluster
from e2e.kubectl import wait_for

_TIMEOUT = urllib3.Timeout(connect=10.0, read=30.0)
_CONTENT_TYPES = {"PATCH": "application/merge-patch+json"}


class Answer(NamedTuple):
    """The status code and the body, of an error its message."""

    code: int
    text: str


class RawRequests:
    """The requests of one account. ``words`` are replaced in paths and bodies by their values."""

    def __init__(self, cluster: Cluster, words: dict[str, str]) -> None:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        authority = base64.b64decode(server["certificate-authority-data"]).decode()
        self._server = str(server["server"])
        self._token = str(config["users"][0]["user"]["token"])
        self._pool = urllib3.PoolManager(ssl_context=ssl.create_default_context(cadata=authority))
        self._words = words

    def wait_until_rejected(self, method: str, path: str, body: Any, text: str) -> None:
        """Repeats a request that changes nothing until it is rejected with this text: an API server
        enforces an admission policy some time after its creation."""
        wait_for(lambda: text in self.send(method, path, body).text, f"{path} is rejected: {text}")

    def send(self, method: str, path: str, body: Any = None) -> Answer:
        """Sends a request, with a merge patch for PATCH."""
        text = json.dumps(body) if body is not None else ""
        for word, value in self._words.items():
            path, text = path.replace(word, value), text.replace(word, value)
        answer = self._pool.request(
            method,
            self._server + path,
            body=text.encode(),
            headers={
                "Authorization": f"Bearer {self._token}",
                "Content-Type": _CONTENT_TYPES.get(method, "application/json"),
            },
            timeout=_TIMEOUT,
            retries=False,
        )
        found = answer.data.decode(errors="replace")
        if answer.status >= 400 and found.startswith("{"):
            found = str(json.loads(found).get("message"))
        return Answer(answer.status, found)
