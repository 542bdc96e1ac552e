"""The process of the placer: `bridge placement run`.

All replicas fill their caches; the holder of the Lease `placement` places pods, and decides Kueue's
admission check (`bridge.kueue.check_process`). A process that
loses the Lease stands by again. Ctrl-C releases the Lease, and pods that wait keep waiting.
With a port, `monitoring_server` serves probes and metrics of either.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import Notify, as_preflight_errors, connect
from bridge.election.election_lease import Candidate
from bridge.kueue import check_process
from bridge.kueue.check_process import KueueChoice
from bridge.placement import admission_policy
from bridge.placement.monitoring_server import MonitoringSettings, serve_monitoring
from bridge.placement.placer_report import PlacerReport
from sync.base.exception_summary import first_leaf
from sync.engine.engine import utc_now
from sync.kube import discovery
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import PLACEMENT_POLICIES
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.placement.placer import Placer
from sync.placement.placer_lease import PlacerLease, PlacerLeaseLost

#: Seconds to release the Lease at the end.
RELEASE_SECONDS = 3.0

NOT_DEFINED = (
    "home: PlacementPolicies are not defined; `bridge placement render | kubectl apply -f -` "
    "installs their CustomResourceDefinition"
)


async def run_placer(
    home: KubeconfigRef,
    kueue: KueueChoice,
    *,
    monitoring: MonitoringSettings | None = None,
    notify: Notify,
    stop: asyncio.Event,
) -> None:
    """Places pods, and decides Kueue's admission check, until ``stop``. Raises PreflightError, and
    CertificateError for files that cannot be used."""
    async with connect(home, side="home", notify=notify) as client:
        report = PlacerReport(client)
        async with serve_monitoring(report, monitoring, notify=notify):
            with as_preflight_errors("home"):
                await require_definition(client)
            candidate = Candidate.local()
            working = asyncio.create_task(
                _work(report, candidate.identity, kueue, notify=notify), name="placer"
            )
            stopping = asyncio.create_task(stop.wait(), name="stop")
            try:
                await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                working.cancel()
                results = await asyncio.gather(working, stopping, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result


async def require_definition(home: KubeClient) -> None:
    """Raises PreflightError if home does not serve PlacementPolicies, and KubeError."""
    if not await discovery.serves_resource(home, PLACEMENT_POLICIES):
        raise PreflightError(NOT_DEFINED)


async def _work(
    report: PlacerReport, identity: str, kueue: KueueChoice, *, notify: Callable[[str], None]
) -> None:
    home = report.home
    while True:
        placer = Placer(home, now=utc_now, identity="placement", counters=report.counters)
        lease = PlacerLease(home, identity)
        report.begin(placer, lease)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(placer.watch(), name="placer-watch")
                await placer.synced()
                await lease.acquire()
                report.transitions += 1
                notify(
                    f"home: placing pods by {len(placer.state.policies)} PlacementPolicies; "
                    f"{placer.waiting} pods wait; new pods are held by the policy "
                    f"{admission_policy.NAME}"
                )
                group.create_task(lease.renew_until_lost(), name="placer-lease")
                group.create_task(placer.work(), name="placer-work")
                checking = check_process.serve(
                    home, kueue, notify=notify, on_controller=report.use_fits
                )
                group.create_task(checking, name="kueue")
        except* PlacerLeaseLost as lost:
            notify(f"home: standing by: {first_leaf(lost)}")
        finally:
            with contextlib.suppress(TimeoutError, KubeError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await lease.release()
