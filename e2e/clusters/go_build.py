"""Builds Go programs, once per version, and keeps them in the cache.

A build runs in a temporary folder that is renamed when all of its programs exist, so the cache
never holds a partial build; the next build removes the remains of an interrupted one. Of two
processes that want the same build, the second waits for the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e.clusters.cluster import Progress
from e2e.clusters.errors import BuildFailed
from e2e.clusters.go_recipes import Recipe, go_mod, go_needed
from e2e.clusters.go_toolchain import OLDEST, Go, find_go
from e2e.clusters.run_command import last_lines, run

# Log lines at this interval show progress; a terminal line is redrawn more often.
LOG_INTERVAL = 15.0
TERMINAL_INTERVAL = 0.5


def programs(recipe: Recipe, cache: Path, say: Progress) -> Path:
    """The folder that holds the recipe's programs, built if they are not there.

    :raises BuildFailed: the compiler failed; the message has its last lines.
    :raises MissingTool: there is no Go toolchain, and none could be installed.
    """
    final = cache / "bin" / recipe.folder
    if final.exists():
        return final
    with locked(cache / "bin" / f".{recipe.folder}.lock"):
        if final.exists():
            return final
        for left in final.parent.glob(f".{recipe.folder}.*.partial"):
            shutil.rmtree(left, ignore_errors=True)
        # Named after this process: the compiler of a killed process may still be writing.
        partial = final.with_name(f".{recipe.folder}.{os.getpid()}.partial")
        partial.mkdir()
        say(f"building {recipe.name} {recipe.version} (once: it is kept in {final})")
        started = time.monotonic()
        try:
            _build(recipe, cache, partial, say)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        say(f"built {recipe.name} {recipe.version} in {time.monotonic() - started:.0f} s")
    return final


def go_program(source: str, name: str, target: Path, cache: Path, say: Progress) -> None:
    """Compiles one Go file that needs the standard library only."""
    go = find_go(cache, OLDEST, say)
    folder = target.parent / f".{name}.source"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text(f"module cluster-bridge.invalid/{name}\n\ngo 1.21\n")
    (folder / "main.go").write_text(source)
    flags = ["-ldflags", "-s -w"]
    run([go.binary, "-C", folder, "build", *flags, "-o", target, "."], env=go.environment)
    shutil.rmtree(folder)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file; the kernel releases it when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, cache: Path, target: Path, say: Progress) -> None:
    source = find_go(cache, recipe.go, say).fetch(recipe.module, recipe.version)
    go = find_go(cache, go_needed(source.go_mod), say)
    (target / "go.mod").write_text(go_mod(recipe, source.go_mod))
    for name, content in recipe.sources:
        (target / name).write_text(content)
    # With a trailing slash, Go writes one binary per package into the folder, by its name.
    flags = ["-v", "-ldflags", recipe.ldflags, "-o"]
    packages = [package for _, package in recipe.programs]
    commands = [[str(go.binary), "build", *flags, f"{target}/", *packages]]
    for name, package in recipe.tests:
        commands.append([str(go.binary), "test", "-c", *flags, str(target / name), package])
    for argv in commands:
        errors = _compile(go, argv, target, f"{recipe.name} {recipe.version}", say)
        if errors is not None:
            raise BuildFailed(
                f"{recipe.name} {recipe.version} does not build:\n{last_lines(errors)}",
                where=f"{recipe.module} {recipe.version}",
                next_step="if a module is unavailable, use another version; otherwise check disk "
                "and network, and run it again",
            )
    for name, package in recipe.programs:
        built = target / (recipe.name if package == "." else _binary_name(package))
        if built.name != name:
            built.rename(target / name)
    if recipe.documents is not None:
        name, paths = recipe.documents
        texts = [(source.folder / path).read_text() for path in paths]
        (target / name).write_text("---\n".join(texts))


def _binary_name(package: str) -> str:
    """The name that Go gives a package's program: the last path element without version suffix."""
    parts = package.split("/")
    return parts[-2] if parts[-1].startswith("v") and parts[-1][1:].isdigit() else parts[-1]


def _compile(go: Go, argv: list[str], folder: Path, title: str, say: Progress) -> str | None:
    """Runs the compiler and reports progress; returns the output if it fails, else None."""
    output: list[str] = []
    compiled = 0

    def read(stream: Iterator[str]) -> None:
        nonlocal compiled
        for line in stream:
            output.append(line)
            compiled += not line.startswith(("go: ", "#", "\t"))

    process = subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, **go.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
    with process:
        reader.start()
        try:
            _report_progress(process, lambda: compiled, title, say)
        except BaseException:
            process.terminate()
            raise
        finally:
            reader.join()
    return None if process.returncode == 0 else "".join(output)


def _report_progress(
    process: subprocess.Popen[str], compiled: Callable[[], int], title: str, say: Progress
) -> None:
    terminal = sys.stderr.isatty()
    started = time.monotonic()
    interval = TERMINAL_INTERVAL if terminal else LOG_INTERVAL
    while True:
        try:
            process.wait(timeout=interval)
        except subprocess.TimeoutExpired:
            line = f"{title}: {compiled()} packages, {time.monotonic() - started:.0f} s"
            if terminal:
                print(f"\r\x1b[K  {line}", end="", file=sys.stderr, flush=True)
            else:
                say(line)
        else:
            if terminal:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            return
