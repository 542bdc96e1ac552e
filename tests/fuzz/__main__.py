"""`python -m tests.fuzz`: a long fuzz run. Exits with 1 if there is a problem.

A quarter of the attacks meets a process on asyncio's event loop, whose steps are measured, and the
rest one on the product's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.fuzz.client_run import TARGETS, fuzz_client
from tests.fuzz.run import SEED_VARIABLE, Report, chosen_seed, fuzz


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def _run(options: argparse.Namespace, seed: int, *, measured: bool) -> list[Report]:
    requests, exchanges = options.requests // 4, options.exchanges // 4
    if not measured:
        requests, exchanges = options.requests - requests, options.exchanges - exchanges
    reports = []
    if options.only not in TARGETS:
        reports.append(
            await fuzz(seed, requests, only=options.only, measured=measured, progress=_progress)
        )
    reports += [
        await fuzz_client(target, seed, exchanges, measured=measured, progress=_progress)
        for target in TARGETS
        if options.only in ("", target)
    ]
    for report in reports:
        print(report.text(), flush=True)
    return reports


parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("--requests", type=int, default=100_000, help="requests to the listeners")
parser.add_argument(
    "--exchanges", type=int, default=20_000, help="exchanges with each hostile server"
)
parser.add_argument("--seed", type=int, help=f"default: ${SEED_VARIABLE}, or a random one")
parser.add_argument(
    "--only", default="", help="one of kubelet, webhook, probe, dashboard, remote, agent"
)
options = parser.parse_args()
seed = chosen_seed() if options.seed is None else options.seed
print(f"seed {seed}", flush=True)
found = [
    report
    for measured in (True, False)
    for report in asyncio.run(_run(options, seed + (not measured), measured=measured))
]
sys.exit(1 if any(report.problems or report.is_slow for report in found) else 0)
