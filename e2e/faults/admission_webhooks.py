"""Admission webhooks, in either cluster, that reject or change the bridge's writes.

A server on this machine is registered as a webhook at the cluster's API server. It reviews the
bridge's writes only: in the remote, objects with the label of its node; at home, statuses of pods;
in both, deletions with a UID precondition, which users do not set. Writes of the clusters' own
components (``system:`` users) pass.
"""

from __future__ import annotations

import base64
import json
import random
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from e2e.audit.findings import LABEL_NODE, MUTATED
from e2e.clusters.certificates import Authority
from e2e.clusters.cluster import Cluster
from e2e.faults.bad_responses import NothingMet
from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault
from e2e.kubectl import Json

Side = Literal["home", "remote"]
#: The webhook's response to a write of the bridge; None admits it unchanged.
Review = Callable[[Json], Json | None]

_GROUP = "admissionregistration.k8s.io/v1"
#: A condition that a webhook of home adds to statuses.
_SEEN = {"type": "faults.example.com/Seen", "status": "True"}
#: Seconds within which a write must reach the webhook; otherwise the trial fails.
_MET_SECONDS = 30.0
#: The reviewed requests in each cluster.
_RULES: dict[Side, list[Json]] = {
    "home": [
        {"operations": ["UPDATE"], "apiGroups": [""], "resources": ["pods/status"]},
        {"operations": ["DELETE"], "apiGroups": [""], "resources": ["pods"]},
    ],
    "remote": [
        {
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "apiGroups": [""],
            "resources": [
                *("pods", "pods/resize", "pods/ephemeralcontainers"),
                *("configmaps", "secrets", "services"),
            ],
        },
    ],
}


class Reviewer:
    """Answers AdmissionReviews over TLS in its own threads. Use as a context manager."""

    def __init__(self, stage: Stage, cluster: Cluster, side: Side, review: Review) -> None:
        self._stage, self._side, self._review = stage, side, review
        self._address = cluster.host_address
        self._lock = threading.Lock()
        self.hits = 0
        """Number of writes that were rejected or changed."""
        self.authority = b""
        self.url = ""

    def __enter__(self) -> Reviewer:
        folder = self._stage.folder / f"reviewer-{self._side}"
        folder.mkdir(exist_ok=True)
        authority = Authority.create(folder, "reviewer-ca", "reviewer-ca")
        own = authority.issue("reviewer", "reviewer", hosts=[self._address])
        self.authority = authority.files.certificate.read_bytes()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(own.certificate, own.key)
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                content = json.dumps(answer(body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer((self._address, 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://{self._address}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="reviewer")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)

    def _answer(self, body: Json) -> Json:
        request = body["request"]
        response: Json = {"uid": request["uid"], "allowed": True}
        if self._is_bridges(request):
            with self._lock:
                found = self._review(request)
                self.hits += found is not None
            response |= found or {}
        return {"apiVersion": body["apiVersion"], "kind": "AdmissionReview", "response": response}

    def _is_bridges(self, request: Json) -> bool:
        if request["userInfo"]["username"].startswith("system:"):
            return False
        if request["operation"] == "DELETE":
            return "uid" in ((request.get("options") or {}).get("preconditions") or {})
        if self._side == "home":
            return bool(request.get("subResource") == "status")
        labels = request["object"]["metadata"].get("labels") or {}
        return bool(labels.get(LABEL_NODE) == self._stage.bridged.node)


@contextmanager
def _reviewed(
    stage: Stage, *, side: Side, review: Callable[[random.Random], Review]
) -> Iterator[None]:
    cluster = stage.home if side == "home" else stage.remote
    with Reviewer(stage, cluster, side, review(stage.random)) as reviewer:
        with _registered(stage, cluster, side, reviewer):
            yield
            stage.work(_MET_SECONDS, until=lambda: reviewer.hits > 0)
        if not reviewer.hits:
            raise NothingMet("no write of the bridge reached the webhook")


@contextmanager
def _registered(stage: Stage, cluster: Cluster, side: Side, reviewer: Reviewer) -> Iterator[None]:
    """Registers a mutating webhook, which can also reject. Its failures are ignored."""
    bridged = stage.bridged
    name = f"{bridged.node}.{side}.faults.example.com"
    namespace = bridged.namespace if side == "home" else bridged.remote_namespace
    webhook = {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 5,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [{**rule, "apiVersions": ["v1"]} for rule in _RULES[side]],
        "clientConfig": {
            "url": reviewer.url,
            "caBundle": base64.b64encode(reviewer.authority).decode(),
        },
    }
    kind = "MutatingWebhookConfiguration"
    made = {"apiVersion": _GROUP, "kind": kind, "metadata": {"name": name}, "webhooks": [webhook]}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(made))
    try:
        yield
    finally:
        cluster.kubectl("delete", kind.lower(), name, "--ignore-not-found")


# -- reviews -------------------------------------------------------------------------------------


def _refuses(chance: random.Random, *, code: int, share: float) -> Review:
    """Rejects this share of writes with the code."""

    def review(_: Json) -> Json | None:
        if chance.random() >= share:
            return None
        message = f"the webhook is configured to answer {code}"
        return {"allowed": False, "status": {"code": code, "message": message}}

    return review


def _changes_pods(_: random.Random) -> Review:
    """New pods in the remote get other requests, a label and an annotation."""

    def review(request: Json) -> Json | None:
        if request["operation"] != "CREATE" or request["resource"]["resource"] != "pods":
            return None
        pod = request["object"]
        patches: list[Json] = [
            {"op": "add", "path": f"/metadata/annotations/{_escaped(MUTATED)}", "value": "yes"},
            {"op": "add", "path": f"/metadata/labels/{_escaped(MUTATED)}", "value": "yes"},
        ]
        for number, container in enumerate(pod["spec"]["containers"]):
            has = container.get("resources") or {}
            requests = {"memory": "16Mi", **(has.get("requests") or {}), "cpu": "7m"}
            value: Any = {**has, "requests": requests}
            path = f"/spec/containers/{number}/resources"
            patches.append({"op": "add", "path": path, "value": value})
        return _patched(patches)

    return review


def _adds_conditions(_: random.Random) -> Review:
    """Statuses at home get another condition."""

    def review(request: Json) -> Json | None:
        conditions = (request["object"] or {}).get("status", {}).get("conditions")
        if not conditions or any(it["type"] == _SEEN["type"] for it in conditions):
            return None
        return _patched([{"op": "add", "path": "/status/conditions/-", "value": _SEEN}])

    return review


def _patched(patches: list[Json]) -> Json:
    text = base64.b64encode(json.dumps(patches).encode()).decode()
    return {"patchType": "JSONPatch", "patch": text}


def _escaped(key: str) -> str:
    """A key as part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _fault(
    name: str,
    what: str,
    side: Side,
    review: Callable[[random.Random], Review],
    *,
    short: bool = False,
) -> Fault:
    return Fault(
        f"admission: {name}",
        what,
        "the webhook is removed",
        partial(_reviewed, side=side, review=review),
        seconds=(5.0, 10.0),
        native=True,
        short=short,
    )


def _refusal(side: Side, code: int) -> Fault:
    where = "the remote" if side == "remote" else "home"
    return _fault(
        f"{code} in {where}" if side == "remote" else f"{code} at home",
        f"of three writes of the bridge, deletions too, a webhook of {where} refuses one with "
        f"{code}",
        side,
        partial(_refuses, code=code, share=0.33),
    )


FAULTS = (
    *(_refusal(side, code) for side in ("home", "remote") for code in (403, 409, 500)),
    _fault(
        "pods are changed in the remote",
        "a webhook of the remote changes the requests, labels and annotations of new pods",
        "remote",
        _changes_pods,
        short=True,
    ),
    _fault(
        "statuses are changed at home",
        "a webhook of home adds a condition to the statuses that the bridge writes",
        "home",
        _adds_conditions,
    ),
)
