"""Two fake clusters: API servers and a kubeconfig for each."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bridge.base.join_settings import JoinSettings
from sync.kube.api_resources import NODES, Object
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests import objects
from tests.fakeapi import Authority, FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.request_log import LoggedRequest
from tests.sync.engine_harness import NODE

#: The credential of the bridge, which must not appear in any output.
CANARY = "canary-4711"


#: The EndpointSlice with the address of home's API server.
API_SLICE: Object = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "kubernetes", "namespace": "default"},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["192.0.2.1"]}],
    "ports": [{"name": "https", "port": 6443}],
}


@dataclass(frozen=True, slots=True)
class Clusters:
    """Both API servers and the settings of a join between them."""

    home: FakeApi
    remote: FakeApi
    settings: JoinSettings

    def but(self, **changes: Any) -> JoinSettings:
        """The settings with these changes."""
        return replace(self.settings, **changes)

    def writes(self) -> list[LoggedRequest]:
        """All write requests to either."""
        return [*self.home.writes(), *self.remote.writes()]


@asynccontextmanager
async def tls_api(folder: Path) -> AsyncIterator[FakeApi]:
    """An API server with TLS, whose CA `clusters` puts into the kubeconfig."""
    authority = Authority(folder)
    pair = authority.issue("server", address="127.0.0.1")
    async with FakeApi(tls=authority.server_context(pair)) as api:
        yield api


def clusters(home: FakeApi, remote: FakeApi, folder: Path) -> Clusters:
    """Writes ``home.yaml`` and ``remote.yaml``, and adds one schedulable node to the remote."""
    files = {}
    for name, api in (("home", home), ("remote", remote)):
        authority = folder / "fake-ca.crt"
        cluster = None
        if api.url.startswith("https"):
            data = base64.b64encode(authority.read_bytes()).decode()
            cluster = {"certificate-authority-data": data}
        content = kubeconfig(
            api.url, user={"token": CANARY}, cluster=cluster, context=f"{name}-context"
        )
        files[name] = write(folder / f"{name}.yaml", content)
    put_worker(remote, "worker")
    home.put(API_SLICE)
    home.put(objects.service_account("default"))
    home.put(objects.config_map("kube-root-ca.crt", data={"ca.crt": "home's CA"}))
    settings = JoinSettings(
        KubeconfigRef(files["remote"]),
        KubeconfigRef(files["home"]),
        name=NODE,
        home_name="h",
        address="127.0.0.1",
        port=0,
        network="flat",
        storage="none",
    )
    return Clusters(home, remote, settings)


def put_worker(api: FakeApi, name: str, *, cpu: str = "4") -> None:
    """Adds a Ready node without the taint that admission sets on a new one."""
    resources = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    status: Object = {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "198.51.100.1"}],
    }
    api.put({**objects.node(name), "spec": {}, "status": status})
    api.update(NODES, name, {"spec": {"taints": None}})
