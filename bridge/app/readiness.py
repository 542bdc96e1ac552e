"""Readiness of the bridge: it serves the node, or would take over at once.

The checks of ``/readyz`` (`bridge.kubelet.healthz`):

- ``caches``: every list of both clusters has been read. A standby replica reads them too and is
  ready like the serving one, so a rolling update loses no time.
- ``home``, ``remote``: every watch there works, or did less than `OUTAGE_SECONDS` ago, as in the
  Node's condition. Namespaces that home does not let the bridge read do not count: their pods'
  Events report that.

Do not restart the bridge on readiness failures; a restart only discards its caches. So ``/livez``
ignores these checks.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping

from bridge.kubelet.healthz import Check
from bridge.node.node_controller import OUTAGE_SECONDS
from sync.engine.engine import Engine


class Readiness:
    """The readiness checks of ``engine``, which may be replaced."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def checks(self) -> Mapping[str, Check]:
        """The checks by name; each returns why it fails, or ""."""
        sides = {side: functools.partial(self._watch_problem, side) for side in ("home", "remote")}
        return {"caches": self.caches_problem, **sides}

    def caches_problem(self) -> str:
        """Why the caches are incomplete; "" if they are complete."""
        waiting = sum(not informer.synced.is_set() for informer in self.engine.informers)
        return f"{waiting} lists of the clusters are not read yet" if waiting else ""

    def _watch_problem(self, side: str) -> str:
        """Whether a watch of this side has failed for longer than `OUTAGE_SECONDS`."""
        now = asyncio.get_running_loop().time()
        for informer in self.engine.informers:
            since = informer.failing_since
            if informer.client.side == side and since is not None and now - since > OUTAGE_SECONDS:
                return f"{informer.resource} cannot be watched: {informer.error}"
        return ""
