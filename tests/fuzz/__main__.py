"""`python -m tests.fuzz`: a long fuzz run. Exits with 1 if there is a problem."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.fuzz.run import SEED_VARIABLE, chosen_seed, fuzz

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("--requests", type=int, default=100_000, help="requests to send")
parser.add_argument("--seed", type=int, help=f"default: ${SEED_VARIABLE}, or a random one")
parser.add_argument("--only", default="", help="one listener: kubelet, webhook, probe, dashboard")
options = parser.parse_args()
seed = chosen_seed() if options.seed is None else options.seed
print(f"seed {seed}", flush=True)
report = asyncio.run(
    fuzz(
        seed,
        options.requests,
        only=options.only,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
)
print(report.text())
sys.exit(1 if report.problems else 0)
