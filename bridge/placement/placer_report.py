"""The state of the placer's process, for its probes and metrics.

The checks of ``/readyz`` (`bridge.kubelet.healthz`), which a standby process passes like the one
that places pods, because it could take over at once:

- ``caches``: every list has been read. A process that lost the Lease reads them again.
- ``home``: every watch works, or did less than `OUTAGE_SECONDS` ago.
- ``election``: the Lease was read or renewed less than its duration ago. A process that cannot see
  the Lease neither places pods nor takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from bridge.kubelet.healthz import Check
from bridge.node.node_controller import OUTAGE_SECONDS
from sync.cache import cache_checks
from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kueue.fits_controller import FitsController
from sync.placement.placement_counters import PlacementCounters
from sync.placement.placer import Placer
from sync.placement.placer_lease import LEASE_SECONDS, PlacerLease
from sync.runtime.controller import Controller

_NOT_STARTED = "the placer has not started yet"


class PlacerReport:
    """The process's placer and Lease now; the counters are those since its start."""

    def __init__(self, home: KubeClient) -> None:
        self.home = home
        self.counters = PlacementCounters()
        self.transitions = 0
        """How often this process acquired the Lease."""
        self.placer: Placer | None = None
        self.lease: PlacerLease | None = None
        self.fits: FitsController | None = None
        """The controller of Kueue's admission check while it runs."""

    def begin(self, placer: Placer, lease: PlacerLease) -> None:
        """These watch and stand by from now on."""
        self.placer, self.lease, self.fits = placer, lease, None

    def use_fits(self, controller: FitsController | None) -> None:
        """This decides Kueue's admission check from now on; None: nothing does."""
        self.fits = controller

    @property
    def is_leader(self) -> bool:
        """Whether this process places pods."""
        return self.lease is not None and self.lease.is_held

    @property
    def informers(self) -> Sequence[Informer]:
        """All informers."""
        own = self.placer.informers if self.placer is not None else ()
        return [*own, *(self.fits.view.informers if self.fits is not None else ())]

    @property
    def controllers(self) -> Sequence[Controller[Any]]:
        """All controllers."""
        placer = self.placer
        own = (placer.controller, placer.status.controller) if placer is not None else ()
        return [*own, *((self.fits.controller,) if self.fits is not None else ())]

    @property
    def checks(self) -> Mapping[str, Check]:
        """The checks of readiness by name; each returns why it fails, or ""."""
        return {
            "caches": self._caches_problem,
            "home": lambda: cache_checks.lasting_outage(self.informers, OUTAGE_SECONDS),
            "election": self._election_problem,
        }

    def _caches_problem(self) -> str:
        return cache_checks.unread_lists(self.informers, "home") if self.placer else _NOT_STARTED

    def _election_problem(self) -> str:
        contact = self.lease.last_contact if self.lease is not None else None
        if contact is None:
            return _NOT_STARTED
        seconds = asyncio.get_running_loop().time() - contact
        return f"the Lease was last seen {seconds:.0f} s ago" if seconds >= LEASE_SECONDS else ""
