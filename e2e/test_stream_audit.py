"""The trail of a stream: from the remote's audit log to the home pod, and to the person at home."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import get_one, wait_for
from e2e.kubectl_streams import forwarded, protocol, run, running
from e2e.workload_manifests import pod, shell

pytestmark = pytest.mark.core

#: Name, or start of the name, of the user in the tests' kubeconfig of home.
PERSON = "kubernetes-admin"
#: Subresources of the streams that the test opens.
KINDS = ("exec", "attach", "portforward", "log")

#: The container of the pod: it accepts connections.
SERVER = "nc -ll -p 9000 -e /bin/cat"

Event = dict[str, Any]


@pytest.fixture
def logs(bridged: Bridged) -> tuple[Path, Path]:
    """The audit logs of home and the remote."""
    home, remote = bridged.home.audit_log, bridged.remote.audit_log
    if home is None or remote is None:
        pytest.skip("the clusters have no audit log")
    return home, remote


def _events(log: Path, text: str) -> Iterator[Event]:
    for line in log.read_text().splitlines(keepends=True):
        if text in line and line.endswith("\n"):
            yield json.loads(line)


def _streams_of(log: Path, uid: str) -> dict[str, dict[str, Event]]:
    """Audit events of the bridge's streams for this home pod, by subresource and audit ID."""
    found: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in _events(log, f"; uid={uid};"):
        found[event["objectRef"]["subresource"]][event["auditID"]] = event
    return found


def _command(event: Event) -> list[str]:
    return parse_qs(urlsplit(event["requestURI"]).query).get("command", [])


def test_streams_are_traceable_to_the_home_pod_and_the_person(
    bridged: Bridged, logs: tuple[Path, Path]
) -> None:
    """exec, attach, port-forward and logs, with WebSockets and SPDY."""
    home_log, remote_log = logs
    bridged.apply(pod(bridged.node, "echo", containers=[shell("main", SERVER)]))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/echo", "--timeout=90s")
    uid = get_one(bridged.home, "pod", "echo", namespace=bridged.namespace)["metadata"]["uid"]
    for times, websockets in enumerate((True, False), start=1):
        env = protocol(websockets)
        mark = f"mark-{uid}-{websockets}"
        args = ("exec", "echo", "--", "echo", mark)
        assert run(bridged.home, bridged.namespace, *args, env=env).stdout.decode().strip() == mark
        with running(bridged.home, bridged.namespace, "attach", "echo", env=env):
            bridged.bridge.wait_for_log(f"pod {bridged.namespace}/echo: attach by ", times=times)
        with forwarded(bridged.home, bridged.namespace, "pod/echo", 9000, env=env):
            pass
        bridged.kubectl("logs", "echo")
    wait_for(
        lambda: [len(_streams_of(remote_log, uid)[it]) for it in KINDS] == [2] * len(KINDS),
        "the remote's audit log has all streams",
    )
    for stream in (it for kind in KINDS for it in _streams_of(remote_log, uid)[kind].values()):
        assert stream["level"] == "Metadata"
        assert stream["auditID"] in bridged.bridge.log.read_text()
    for event in _streams_of(remote_log, uid)["exec"].values():
        _check_trail(bridged, home_log, event)


def _check_trail(bridged: Bridged, home_log: Path, event: Event) -> None:
    """Follows the steps of docs/reference/kubelet-api.md from the remote's event."""
    assert f"; pod={bridged.namespace}/echo; " in event["userAgent"]
    (caller,) = re.findall(
        rf"pod {bridged.namespace}/echo: exec by (\S+); .*{event['auditID']}",
        bridged.bridge.log.read_text(),
    )
    assert f"caller=sha256:{hashlib.sha256(caller.encode()).hexdigest()})" in event["userAgent"]
    persons = {
        it["user"]["username"]
        for it in _events(home_log, '"exec"')
        if it["objectRef"]["namespace"] == bridged.namespace
        and it["objectRef"].get("subresource") == "exec"
        and _command(it) == _command(event)
    }
    assert len(persons) == 1
    assert persons.pop().startswith(PERSON)
