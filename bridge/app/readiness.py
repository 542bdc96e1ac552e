"""Whether the bridge is ready: it serves the node, or would at once when its turn comes.

Three checks, for ``/readyz`` (`bridge.kubelet.healthz`):

- ``caches``: every list of both clusters has been read. A bridge that stands by reads them too, so
  it is ready like the one that serves: a rolling update that waits for it loses no time.
- ``home``, ``remote``: what is watched there can be watched, or could be less than
  `OUTAGE_SECONDS` ago, as the Node's condition has it. Namespaces that home does not let the bridge
  read do not count: that is told their pods.

Not ready is no reason for a restart, which would only empty the caches: ``/livez`` does not look
here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping

from bridge.kubelet.healthz import Check
from bridge.node.controller import OUTAGE_SECONDS
from sync.engine.engine import Engine


class Readiness:
    """The checks of one join."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def use_engine(self, engine: Engine) -> None:
        """Looks at the caches of this one from now on."""
        self._engine = engine

    @property
    def checks(self) -> Mapping[str, Check]:
        """By name, each says why it does not hold."""
        sides = {side: functools.partial(self._watched, side) for side in ("home", "remote")}
        return {"caches": self.caches_problem, **sides}

    def caches_problem(self) -> str:
        """Why the caches are not complete; "" where they are."""
        waiting = sum(not informer.synced.is_set() for informer in self._engine.informers)
        return f"{waiting} lists of the clusters are not read yet" if waiting else ""

    def _watched(self, side: str) -> str:
        now = asyncio.get_running_loop().time()
        for informer in self._engine.informers:
            since = informer.failing_since
            if informer.client.side == side and since is not None and now - since > OUTAGE_SECONDS:
                return f"{informer.resource} cannot be watched: {informer.error}"
        return ""
