"""A second API server of a native cluster, with its own port and CA.

As in a highly available control plane, it shares etcd, the service account keys and the client CA
with the cluster's first API server, which keeps serving all other clients. So a test can rotate its
CA and change its address without harm to the cluster.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e import background_process
from e2e.clusters import go_recipes
from e2e.clusters.certificates import Authority
from e2e.clusters.cluster import Cluster
from e2e.clusters.native import NativeControl
from e2e.clusters.native_control_plane import AUDIT_LOG, api_server_command
from e2e.kubectl import wait_for

#: Seconds until an API server is ready on a busy machine.
START_SECONDS = 120.0
#: Seconds until it has ended.
STOP_SECONDS = 10.0
#: A name in its certificate, next to the address of the node.
SERVER_NAME = "kubernetes"
#: Ports above those of all other programs in a cluster's network namespace.
_PORTS = itertools.count(26443)


def native_control(cluster: Cluster) -> NativeControl:
    """The control of a native cluster; the test of another one is skipped."""
    if not isinstance(cluster.control, NativeControl):
        pytest.skip("a second API server is a process of native clusters")
    return cluster.control


class SecondApiServer:
    """A context manager; the server runs in the block. ``cluster`` has the credential of the
    kubeconfig that `write_kubeconfig` writes. ``flags``: more flags of the server; one replaces
    the cluster's flag of the same name."""

    def __init__(self, cluster: Cluster, folder: Path, *flags: str) -> None:
        control = cluster.control
        assert isinstance(control, NativeControl)
        self._cluster = cluster
        self._site = control.site
        self._folder = folder / f"api-server-{cluster.name}"
        self._flags = flags
        self._names = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = next(_PORTS)
        self.audit_log = self._folder / AUDIT_LOG

    def __enter__(self) -> SecondApiServer:
        self._folder.mkdir()
        self._authority = self._new_authority()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def rotate(self) -> None:
        """Restarts it with a certificate of another CA."""
        self._stop()
        self._authority = self._new_authority()
        self._start()

    def move(self) -> None:
        """Restarts it at another port."""
        self._stop()
        self.port = next(_PORTS)
        self._start()

    def write_kubeconfig(self, name: str = "kubeconfig") -> Cluster:
        """Atomically re-writes the kubeconfig of this server; returns a handle that uses it."""
        config = yaml.safe_load(self._cluster.kubeconfig.read_text())
        authority = self._authority.files.certificate.read_bytes()
        for entry in config["clusters"]:
            entry["cluster"] = {
                "server": f"https://{self._cluster.node_ip}:{self.port}",
                "certificate-authority-data": base64.b64encode(authority).decode(),
            }
        path = self._folder / name
        partial = path.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(yaml.safe_dump(config))
        partial.replace(path)
        return dataclasses.replace(self._cluster, kubeconfig=path)

    def _new_authority(self) -> Authority:
        name = f"ca-{next(self._names)}"
        authority = Authority.create(self._folder, name, name)
        hosts = [self._cluster.node_ip, SERVER_NAME]
        authority.issue(f"{name}-serving", "kube-apiserver", hosts=hosts)
        return authority

    def _command(self) -> list[str | Path]:
        serving = self._folder / f"{self._authority.name}-serving"
        programs = self._site.settings.cache / "bin"
        programs /= go_recipes.kubernetes(self._site.settings.kubernetes).folder
        own = {
            "--secure-port": self.port,
            "--tls-cert-file": f"{serving}.crt",
            "--tls-private-key-file": f"{serving}.key",
            "--audit-log-path": self.audit_log,
            "--cert-dir": self._folder,
        }
        program, *flags = api_server_command(self._site, programs)
        replaced = {*own, *(flag.partition("=")[0] for flag in self._flags)}
        kept = [flag for flag in flags if str(flag).partition("=")[0] not in replaced]
        # It is no endpoint of the Service kubernetes: pods use the first API server.
        more = [
            *(f"{key}={value}" for key, value in own.items()),
            "--endpoint-reconciler-type=none",
            *self._flags,
        ]
        return [program, *kept, *more]

    def _start(self) -> None:
        inside = ["nsenter", f"--net={self._site.network.path}", "--"]
        command = [*inside, *self._command()]
        self._process = background_process.start(command, self._folder / "log")
        through = self.write_kubeconfig("own-kubeconfig")
        wait_for(
            lambda: (
                through.kubectl("get", "--raw", "/readyz", check=False, timeout=10).returncode == 0
            ),
            f"the API server of {self._cluster.name} at port {self.port} is ready",
            seconds=START_SECONDS,
        )

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            background_process.end(process, grace=STOP_SECONDS)
