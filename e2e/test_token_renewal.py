"""A bridge with a token that the remote's API server issues for ten minutes."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bridge.rbac.rbac_manifests import Account
from e2e import bridge_process, service_accounts
from e2e.bridge_process import Bridge
from e2e.conftest import Bridged
from e2e.kubectl import get_one, wait_for
from e2e.workload_manifests import busybox
from translators.timestamps import parse_time

#: Seconds until the report: the server caches a token for 10, an outage is reported after 15.
REPORT_SECONDS = 60.0


def _announced(bridge: Bridge) -> list[str]:
    """When the token expires, as each start of the bridge has logged it."""
    return re.findall(r"is valid until (\S+), and the bridge renews it", bridge.log.read_text())


def _ready_reason(bridged: Bridged) -> str:
    # An open watch continues without a valid credential: this causes a request.
    bridged.kubectl("annotate", "pod", "runs", f"asked={time.monotonic()}", "--overwrite")
    conditions = get_one(bridged.home, "node", bridged.node)["status"]["conditions"]
    return str(next(it["reason"] for it in conditions if it["type"] == "Ready"))


def test_short_lived_token_is_renewed_once_and_used_after_a_restart(
    bridged: Bridged, tmp_path: Path
) -> None:
    """The renewed token is bound to the same Secret as the first: its deletion revokes both."""
    bridge, remote, own = bridged.bridge, bridged.remote, Account("default", bridged.node)
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    remote.kubectl("create", "secret", "generic", own.name, "-n", own.namespace)
    bound = ("--bound-object-kind=Secret", f"--bound-object-name={own.name}")
    try:
        assert bridge.stop() == 0
        bridge.env = state
        bridge.remote = service_accounts.granted(
            *(remote, tmp_path, *service_accounts.REMOTE_ARGUMENTS),
            account=own,
            token_options=(*service_accounts.SHORT_LIVED, *bound),
        )
        bridge.start()
        *_, end = _announced(bridge)
        left = parse_time(end) - datetime.now(UTC)
        assert timedelta(minutes=50) < left < timedelta(minutes=65)
        bridged.apply(busybox(bridged.node, "runs", "sleep 3600"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/runs", "--timeout=60s")

        assert bridge.stop() == 0
        bridge.start()
        assert _announced(bridge)[-2:] == [end, end], "the same token"
        assert bridged.kubectl("exec", "runs", "--", "echo", "hello").strip() == "hello"
        checked = bridge_process.run(
            *("check", bridged.node, "-o", "json"), home=bridged.home, env=state
        )
        assert f"is valid until {end}, and the bridge renews it" in checked.stdout

        remote.kubectl("delete", "secret", own.name, "-n", own.namespace)
        wait_for(
            lambda: _ready_reason(bridged) == "RemoteCredentialRefused",
            "the renewed token is revoked too",
            seconds=REPORT_SECONDS,
        )
    finally:
        remote.kubectl("delete", "secret", own.name, "-n", own.namespace, "--ignore-not-found")
        service_accounts.take_away(remote, own)
