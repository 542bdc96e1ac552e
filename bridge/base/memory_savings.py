"""Every measure that keeps the resident memory (RSS) of a running bridge small.

With each measure and without it, on Linux with Python 3.11, in megabytes:

- `restart_with`, `restart_argument`: a join restarts its process once its options are parsed, so
  that typer and rich are not loaded while it serves. Idle: 54.5 instead of 68.5.
- `run_module`: a module that needs a heavy package runs in a child process; `cryptography` creates
  one certificate a year. Idle: 54.5 instead of 66.4.
- `import_aiohttp`: aiohttp is imported without the CAs of the system. Idle: 54.5 instead of 56.1.
- prometheus_client is imported at the first request for metrics. Idle: 54.5 instead of 55.5.
- The version is a constant, so that nothing reads it with `importlib.metadata`. Idle: 54.5 instead
  of 55.4.
- The controllers of storage are imported where storage is on. Idle: 54.5 instead of 54.9.
- `release_memory`: collects garbage after a burst, because each of Python's free lists can keep a
  block of 1 MB. After 400 pods of 30 containers: 144.0 instead of 148.0.

`reduce_collections` and `freeze_imports` save processor time: by default the collector scans all
objects repeatedly while caches fill, which with 10,000 pods takes half of the time. Objects are
freed by reference counting; the collector is needed for cycles alone, and a pod leaves almost none.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import pickle
import ssl
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any, NoReturn

#: The file descriptor with the argument of `restart_with`, between the two process images.
_VARIABLE = "CLUSTER_BRIDGE_ASKED"
#: New objects before a collection of generation 0; collections of each generation before one of the
#: next. While caches fill with 10,000 pods of 60 objects, the collector takes 14 % of the time
#: (default: 48 %), in pauses of at most 5 ms. In a burst of 1,000 pods and its end it takes 0.3 s
#: (default: 0.7 s), with a longest pause of 26 ms (default: 75). A full collection runs after 1.25
#: million objects, which bounds the garbage in cycles.
THRESHOLDS = (5_000, 5, 50)
#: Seconds between counts of allocated blocks. A count takes 80 µs with 165 MB.
CHECK_INTERVAL = 15.0
#: Share of the growth that must be freed before a full collection, which costs what remains.
FREED_SHARE = 0.5
#: Fewer freed blocks than these (5 MB) are not worth a collection.
MIN_FREED_BLOCKS = 50_000
#: Seconds that a child process may take; making a certificate takes 0.1.
CHILD_TIMEOUT = 10.0


def restart_with(argument: object) -> None:
    """Replaces this process by the same command, where `restart_argument` returns ``argument``.

    Process id, terminal and standard streams stay. Returns only where the process cannot be
    replaced, for example on a full disk; the caller then continues in this one.
    """
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
        pickle.dump(argument, file)
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(  # noqa: S606  # no shell is needed
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, _VARIABLE: str(file.fileno())},
        )


def restart_argument() -> Any:
    """The argument of `restart_with`; None in a process that it has not started."""
    number = os.environ.pop(_VARIABLE, None)
    if number is None:
        return None
    with open(int(number), "rb") as file:  # noqa: PTH123  # the file has no name
        return pickle.load(file)  # noqa: S301  # this process wrote it


async def run_module(module: str, *arguments: str, data: bytes = b"") -> bytes | None:
    """Runs ``python -m MODULE ARGUMENTS`` in a child process with ``data`` as its standard input,
    and returns its standard output.

    None if no process can be started, where it fails, or after `CHILD_TIMEOUT`. No child remains
    after a return or a cancellation.
    """
    with contextlib.suppress(OSError, TimeoutError):
        # -P: do not import modules from the working directory.
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module, *arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
        )
        try:
            async with asyncio.timeout(CHILD_TIMEOUT):
                output, _ = await child.communicate(data)
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        if child.returncode == 0:
            return output
    return None


def import_aiohttp() -> None:
    """Imports aiohttp without the CAs of the system. Call this before any other import of it.

    aiohttp creates two TLS contexts when it is imported, each with all these CAs. The bridge passes
    a context of its own with every request. A request without one may trust no CA.
    """
    variable = ssl.get_default_verify_paths().openssl_cafile_env
    previous = os.environ.get(variable)
    os.environ[variable] = os.devnull
    try:
        importlib.import_module("aiohttp")
    finally:
        if previous is None:
            del os.environ[variable]
        else:
            os.environ[variable] = previous


def reduce_collections() -> None:
    """Makes garbage collections rarer. Call this before most modules are imported."""
    gc.set_threshold(*THRESHOLDS)


def freeze_imports() -> None:
    """Excludes imported modules from garbage collection. Call this after all imports."""
    gc.freeze()


async def release_memory() -> NoReturn:
    """Runs a full collection whenever half of the growth since the start is freed.

    Runs until cancelled. An idle bridge collects nothing.
    """
    least = most = sys.getallocatedblocks()
    while True:
        await asyncio.sleep(CHECK_INTERVAL)
        now = sys.getallocatedblocks()
        if most - now > max(MIN_FREED_BLOCKS, (most - least) * FREED_SHARE):
            gc.collect()
            most = now
        most = max(most, now)
