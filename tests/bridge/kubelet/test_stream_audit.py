"""The trail of a stream: headers for the remote's audit log, and the line in the bridge's log."""

from __future__ import annotations

import hashlib
import re
from unittest.mock import MagicMock
from uuid import UUID

import pytest

from bridge.base.version import version
from bridge.kubelet.authn import User
from bridge.kubelet.pod_lookup import PodAccess, RemotePod
from bridge.kubelet.routing import RoutedRequest
from bridge.kubelet.stream_audit import MAX_USER_AGENT, audit_headers
from tests.bridge.kubelet.conftest import KubeletHarness
from tests.bridge.kubelet.fake_api_servers import EXEC, echo
from tests.bridge.kubelet.test_run_in_container import RUN

LOG = "/containerLogs/default/web/app"


def trail_of(harness: KubeletHarness, caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """The user agent of the last request to the remote, and the line of its audit ID."""
    request = harness.remote.requests[-1]
    (agent,) = request.header_values("User-Agent")
    (audit_id,) = request.header_values("Audit-ID")
    assert str(UUID(audit_id)) == audit_id
    (line,) = [it for it in caplog.messages if audit_id in it]
    return agent, line


def caller_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@pytest.mark.parametrize("target", [EXEC, "/attach/default/web/app?output=1"])
async def test_stream_of_home_api_server(
    harness: KubeletHarness, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    caplog.set_level("INFO", "cluster-bridge.audit")
    harness.remote.handler = echo
    _, _, writer = await harness.upgrade(target)
    agent, line = trail_of(harness, caplog)
    kind = target.split("/")[1]
    assert agent == (
        f"cluster-bridge/{version()} ({kind}; node=virtual; pod=default/web; uid=uid-1; "
        f"caller=sha256:{caller_hash('kube-apiserver')})"
    )
    assert line.startswith(f"pod default/web: {kind} by kube-apiserver; audit ID")
    assert not [it for it in caplog.messages if "a b&c" in it], "a command may hold a secret"
    writer.close()


async def test_caller_with_a_token(
    harness: KubeletHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cluster-bridge.audit")
    async with harness.session() as session:
        for method, target, kind in (("GET", LOG, "logs"), ("POST", RUN, "run")):
            async with session.request(method, target):
                agent, line = trail_of(harness, caplog)
            assert f"({kind}; node=virtual; pod=default/web; uid=uid-1;" in agent
            assert agent.endswith(f"caller=sha256:{caller_hash('alice')})")
            assert line.startswith(f"pod default/web: {kind} by alice; audit ID")


async def test_each_stream_has_its_own_audit_id(harness: KubeletHarness) -> None:
    async with harness.session() as session:
        for _ in range(3):
            async with session.get(LOG):
                pass
    ids = {it.header_values("Audit-ID")[0] for it in harness.remote.requests}
    assert len(ids) == 3


async def test_audit_headers_of_the_caller_are_not_forwarded(harness: KubeletHarness) -> None:
    harness.remote.handler = echo
    planted = ("Audit-ID: planted", "User-Agent: planted", "X-Forwarded-For: planted")
    _, _, writer = await harness.upgrade(EXEC, *planted)
    headers = harness.remote.requests[0].headers
    assert not [it for it in headers if "planted" in it[1]]
    writer.close()


def test_headers_are_bounded_and_have_no_special_characters() -> None:
    hostile = "a)\r\nX-Injected: b; uid=\udcff\u202e" * 1000
    routed = RoutedRequest(
        MagicMock(), User(hostile, ()), {"namespace": hostile, "pod": "web"}, query=""
    )
    access = PodAccess(hostile, MagicMock(), MagicMock(), MagicMock())
    pod = RemotePod("default-home", "web", frozenset(), hostile)
    headers = audit_headers(access, "exec", routed, pod)
    assert len(headers["User-Agent"]) == MAX_USER_AGENT
    assert re.fullmatch(r"cluster-bridge/[\w.]+ \([-\w./:;= ]+", headers["User-Agent"], re.ASCII)


def test_longest_names_are_not_truncated() -> None:
    names = {"namespace": "n" * 63, "pod": "p" * 253}
    routed = RoutedRequest(MagicMock(), User("alice", ()), names, query="")
    access = PodAccess("v" * 253, MagicMock(), MagicMock(), MagicMock())
    pod = RemotePod("default-home", "web", frozenset(), "u" * 63)
    agent = audit_headers(access, "portforward", routed, pod)["User-Agent"]
    assert agent.endswith(f"caller=sha256:{caller_hash('alice')})")
