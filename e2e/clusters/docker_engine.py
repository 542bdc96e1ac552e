"""The Docker engine of kind's clusters: the one that answers here, or a private one.

Without an engine, and as root, Debian's dockerd is started with its own data, sockets and network
namespace: its bridges, packet rules and forwarding do not affect the machine and end with the
namespace. A veth pair joins the namespace to the machine, which has a route to the containers and
one to the pods of each cluster (`e2e.clusters.kind_routes`). The namespace has no route to other
networks, so this engine cannot pull images.

All sets of clusters share one private engine. `up` leaves it running; the `down` that removes the
last container stops it. Images stay in the cache; other leftovers are removed when the engine
starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from e2e.clusters import go_build, native_network, oci_runtime, system_packages
from e2e.clusters.addresses import free_slot
from e2e.clusters.cgroups import Cgroups
from e2e.clusters.cluster import DEFAULT_NETWORK, Progress
from e2e.clusters.errors import ClusterError, MissingTool, StartFailed
from e2e.clusters.mounts import unmount_below
from e2e.clusters.processes import POLL, Supervisor
from e2e.clusters.run_command import run

#: kind's name for its Docker network.
NETWORK = "kind"

_DOCKERD = "dockerd"
#: Name of cgroups, network namespace, and (up to fifteen bytes) the machine's end of the veth pair.
_NAME = "cluster-bridge-docker"
_CABLE = "cbr-docker"
_RUN = Path("/run", _NAME)
_SOCKET = _RUN / "docker.sock"
_SLOT = _RUN / "slot"
_CONFIG = _RUN / "daemon.json"
#: Held while the private engine is started or ended.
_LOCK = Path("/run/lock", f"{_NAME}.lock")
#: Held, shared, by processes that create or remove clusters in it.
_USERS_LOCK = Path("/run/lock", f"{_NAME}-users.lock")

_ANSWER_TIMEOUT = 10.0
_START_TIMEOUT = 60.0
_END_GRACE = 20.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A Docker engine that answered."""

    host: str
    """DOCKER_HOST; empty for the engine that the environment selects."""

    @property
    def private(self) -> bool:
        """Whether it is the private engine."""
        return bool(self.host)

    @property
    def environment(self) -> dict[str, str]:
        """The environment that directs docker and kind to it."""
        return {"DOCKER_HOST": self.host} if self.host else {}

    def docker(
        self,
        *argv: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        timeout: float | None = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Runs the docker command.

        :raises CommandFailed: it ended with an error and `check` is set, or it timed out.
        """
        command = ["docker", *argv]
        return run(command, check=check, input=input, env=self.environment, timeout=timeout)

    def has_image(self, name: str) -> bool:
        """Whether the engine has this image; no registry is queried."""
        return self.docker("image", "inspect", name, check=False).returncode == 0


def available() -> bool:
    """Whether a Docker engine other than the private one answers."""
    return _answers(Engine(""))


def find() -> Engine | None:
    """The running engine: the user's, else the private one."""
    if available():
        return Engine("")
    own = Engine(f"unix://{_SOCKET}")
    return own if _SOCKET.exists() and _answers(own) else None


def ensure(cache: Path, say: Progress) -> Engine:
    """The running engine; starts the private one if there is none.

    :raises MissingTool: no engine runs, and this process is not root.
    :raises StartFailed: the private engine does not answer.
    """
    if (found := find()) is not None:
        return found
    if os.geteuid() != 0:
        raise MissingTool(
            "no Docker engine answers, and only root can start one",
            next_step="start Docker, or take --backend native (as root)",
        )
    system_packages.ensure(system_packages.ENGINE, say)
    with go_build.locked(_LOCK):
        return find() or _start(cache, say)


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Prevents other processes from stopping the private engine while the block runs."""
    with _users(fcntl.LOCK_SH):
        yield


def release(engine: Engine, say: Progress) -> None:
    """Stops the private engine if it has no containers and no users. Not within `used`.

    :raises StartFailed: one of its processes does not end.
    """
    if not engine.private:
        return
    try:
        with _users(fcntl.LOCK_EX | fcntl.LOCK_NB), go_build.locked(_LOCK):
            left = engine.docker("ps", "--all", "--quiet", check=False)
            if left.returncode != 0 or not left.stdout.strip():
                say("stopping the private Docker engine")
                _end()
    except BlockingIOError:
        pass  # its current user calls `release`, too


def host_address(engine: Engine) -> str | None:
    """This machine's address for containers of the private engine; None for another engine."""
    return str(_Addresses(_read_slot()).host) if engine.private else None


@dataclass(frozen=True, slots=True)
class Hop:
    """The next hop of this machine's packets to a private engine's containers."""

    namespace: str
    address: IPv4Address


def hop(engine: Engine) -> Hop | None:
    """The hop between this machine and the engine's containers; None for another engine."""
    return Hop(_NAME, _Addresses(_read_slot()).engine) if engine.private else None


@contextlib.contextmanager
def _users(how: int) -> Iterator[None]:
    if os.geteuid() != 0:  # without root there is no private engine
        yield
        return
    _USERS_LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _USERS_LOCK.open("w") as file:
        fcntl.flock(file, how)
        yield


def _answers(engine: Engine) -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        return engine.docker("info", check=False, timeout=_ANSWER_TIMEOUT).returncode == 0
    except ClusterError:
        return False


@dataclass(frozen=True, slots=True)
class _Addresses:
    """The private engine's part of the address plan: the veth pair, and kind's network."""

    slot: IPv4Network

    @property
    def host(self) -> IPv4Address:
        return self.slot.network_address + 1

    @property
    def engine(self) -> IPv4Address:
        return self.slot.network_address + 2

    @property
    def containers(self) -> IPv4Network:
        return IPv4Network((self.slot.network_address + 256, 24))


def _read_slot() -> IPv4Network:
    return IPv4Network(json.loads(_SLOT.read_text()))


def _cgroups() -> Cgroups:
    return Cgroups.named(_NAME)


def _supervisor() -> Supervisor:
    netns = native_network.NAMESPACES / _NAME
    return Supervisor(_RUN / "processes", _RUN / "logs", _cgroups().join, netns)


def _start(cache: Path, say: Progress) -> Engine:
    say("starting a private Docker engine")
    _end()  # remains of an earlier boot or a killed engine
    _RUN.mkdir(parents=True)
    _make_network()
    _CONFIG.write_text("{}")  # the user's configuration is for another engine
    _cgroups().create()
    supervisor = _supervisor()
    supervisor.start(_DOCKERD, _command(cache, _runtime()))
    own = Engine(f"unix://{_SOCKET}")
    deadline = time.monotonic() + _START_TIMEOUT
    while not (_SOCKET.exists() and _answers(own)):
        if not supervisor.running(_DOCKERD) or time.monotonic() > deadline:
            raise supervisor.failure(_DOCKERD, "the private Docker engine does not answer")
        time.sleep(POLL)
    # Remains of an earlier boot or of a killed engine: all are useless.
    for container in own.docker("ps", "--all", "--quiet").stdout.split():
        own.docker("rm", "--force", "--volumes", container)
    for what in ("volume", "image"):  # unused volumes, untagged images
        own.docker(what, "prune", "--force")
    own.docker("network", "rm", NETWORK, check=False)
    subnet = str(_Addresses(_read_slot()).containers)
    masquerade = "com.docker.network.bridge.enable_ip_masquerade=true"
    own.docker("network", "create", "--opt", masquerade, "--subnet", subnet, NETWORK)
    return own


def _make_network() -> None:
    """Creates the namespace with its veth pair, and the machine's route to the containers."""
    with go_build.locked(native_network.ADDRESS_LOCK):
        slot = free_slot(DEFAULT_NETWORK, native_network.networks_in_use())
        addresses = _Addresses(slot)
        run(["ip", "netns", "add", _NAME])
        peer = ["peer", "name", native_network.INTERFACE, "netns", _NAME]
        run(["ip", "link", "add", _CABLE, "type", "veth", *peer])
        # The address marks the slot as used for other sets of clusters.
        native_network.batch(
            [f"address add {addresses.host}/24 dev {_CABLE}", f"link set {_CABLE} up"]
        )
    _SLOT.write_text(json.dumps(str(slot)))
    native_network.batch([f"route add {addresses.containers} via {addresses.engine}"])
    native_network.batch(
        [
            "link set lo up",
            f"address add {addresses.engine}/24 dev {native_network.INTERFACE}",
            f"link set {native_network.INTERFACE} up",
        ],
        namespace=_NAME,
    )
    # Before dockerd starts: if dockerd enables forwarding itself, it also drops packets to
    # unpublished ports, and the machine must reach the containers.
    native_network.forward(native_network.NAMESPACES / _NAME)


def _runtime() -> list[str]:
    """Options for a runtime that requests fewer privileges, if necessary."""
    if not oci_runtime.needed():
        return []
    # A copy, run by the interpreter behind the virtual environment: neither depends on a checkout.
    script, program = _RUN / "oci_runtime.py", _RUN / "runc-with-less"
    shutil.copyfile(Path(oci_runtime.__file__), script)
    python = Path(sys.executable).resolve()
    words = [python, "-I", "-S", script, shutil.which("runc") or "/usr/sbin/runc"]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    program.chmod(0o755)
    return ["--add-runtime", f"with-less={program}", "--default-runtime", "with-less"]


def _command(cache: Path, runtime: Sequence[str]) -> list[str | Path]:
    return [
        _DOCKERD,
        f"--host=unix://{_SOCKET}",
        f"--data-root={cache / 'docker'}",
        f"--exec-root={_RUN / 'exec'}",
        f"--pidfile={_RUN / 'dockerd.pid'}",
        f"--config-file={_CONFIG}",
        f"--cgroup-parent=/{_NAME}",
        # Without CAP_SYS_RESOURCE it cannot lower its score, and it need not.
        "--oom-score-adjust=0",
        "--bridge=none",
        "--log-level=warn",
        *runtime,
    ]


def _end() -> None:
    """Removes all of the engine except its images, whatever exists of it."""
    supervisor, cgroups = _supervisor(), _cgroups()
    if _DOCKERD in supervisor.names():
        supervisor.stop(_DOCKERD, grace=_END_GRACE)
    cgroups.kill()
    unmount_below(_RUN)
    _unmount_layers()
    if native_network.exists(_CABLE):
        run(["ip", "link", "del", _CABLE], check=False)
    if (native_network.NAMESPACES / _NAME).exists():
        run(["ip", "netns", "del", _NAME])
    cgroups.remove()
    shutil.rmtree(_RUN, ignore_errors=True)


def _unmount_layers() -> None:
    """Unmounts layers of a killed engine; its command line has the data folder."""
    with contextlib.suppress(FileNotFoundError, StartFailed):
        record = json.loads((_RUN / "processes" / f"{_DOCKERD}.json").read_text())
        for option in record["argv"]:
            name, _, value = option.partition("=")
            if name == "--data-root":
                unmount_below(Path(value))
