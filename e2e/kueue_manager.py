"""The real Kueue manager at home: a process beside the cluster, with definitions and webhooks.

Definitions and webhooks are those of the released module, limited to Kueue's own objects and to
Jobs of namespaces with the label `SELECTS`, so that no other test notices Kueue. The manager
creates its certificate in a Secret; the fixture copies it to the folder from which the manager
serves, as a kubelet would.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from e2e import background_process
from e2e.clusters.cluster import Cluster, Settings
from e2e.clusters.go_build import programs
from e2e.clusters.go_recipes import KUEUE_MODULE, KUEUE_PROGRAM, kueue
from e2e.clusters.go_toolchain import OLDEST, find_go
from e2e.clusters.versions import KUEUE
from e2e.kubectl import Json, get_one, wait_for

#: Label of namespaces whose Jobs Kueue manages.
SELECTS = "e2e.example.com/kueue"

_NAMESPACE = "kueue-system"
_SERVICE = "kueue-webhook-service"
_SECRET = "kueue-webhook-server-cert"
_GROUP = "kueue.x-k8s.io"
#: Seconds until the manager serves its webhooks: it waits for its certificate with growing pauses.
_START_SECONDS = 90.0


@contextmanager
def running(home: Cluster, settings: Settings, folder: Path, configuration: Json) -> Iterator[None]:
    """The home cluster has Kueue for the block; ``folder`` gets configuration, certificate and log.

    ``configuration`` has further fields of Kueue's Configuration.
    """
    program = programs(kueue(), settings.cache, print) / KUEUE_PROGRAM
    source = find_go(settings.cache, OLDEST, print).fetch(KUEUE_MODULE, KUEUE).folder
    components = source / "config" / "components"
    ports = {name: _free_port(home.host_address) for name in ("webhook", "health")}
    with ExitStack() as stack:
        stack.enter_context(_applied(home, _system(home.host_address, ports["webhook"])))
        definitions = _definitions(components / "crd")
        _apply(home, definitions)
        whole = {**_configuration(home.host_address, ports, folder), **configuration}
        stack.enter_context(_process(home, program, folder, whole))
        # While the manager still runs: it removes its finalizers from the remaining objects.
        stack.callback(_delete, home, definitions)
        stack.enter_context(_applied(home, _webhooks(components / "webhook" / "manifests.yaml")))
        _mount_certificate(home, folder)
        wait_for(lambda: _serves(home), "Kueue's webhooks answer", seconds=_START_SECONDS)
        yield


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def _applied(home: Cluster, objects: list[Json]) -> Iterator[None]:
    _apply(home, objects)
    try:
        yield
    finally:
        _delete(home, objects)


def _apply(home: Cluster, objects: list[Json]) -> None:
    home.kubectl("apply", "--server-side", "-f", "-", input=_listed(objects))


def _delete(home: Cluster, objects: list[Json]) -> None:
    home.kubectl("delete", "--ignore-not-found", "-f", "-", input=_listed(objects), timeout=120)


def _listed(objects: list[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


@contextmanager
def _process(home: Cluster, program: Path, folder: Path, configuration: Json) -> Iterator[None]:
    """The manager, as an administrator of home."""
    config = folder / "kueue.yaml"
    config.write_text(json.dumps(configuration))
    gates = "--feature-gates=VisibilityOnDemand=false"
    command: list[str | Path] = [program, f"--config={config}", gates, "--zap-log-level=2"]
    env = {"KUBECONFIG": str(home.kubeconfig)}
    with background_process.running(command, folder / "kueue.log", env=env, grace=30.0):
        yield


def _configuration(address: str, ports: dict[str, int], folder: Path) -> Json:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": _NAMESPACE,
        "health": {"healthProbeBindAddress": f"{address}:{ports['health']}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": address, "port": ports["webhook"], "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": _SERVICE,
            "webhookSecretName": _SECRET,
        },
        "clientConnection": {"qps": 300, "burst": 500},
        "integrations": {"frameworks": ["batch/job"]},
    }


def _system(address: str, port: int) -> list[Json]:
    """The namespace, the empty Secret of the certificate, and the Service without selector by
    which the API server reaches the webhooks on this machine."""
    meta = {"name": _SERVICE, "namespace": _NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": _SECRET, "namespace": _NAMESPACE},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**meta, "labels": {"kubernetes.io/service-name": _SERVICE}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        },
    ]


def _definitions(folder: Path) -> list[Json]:
    """The CustomResourceDefinitions, with conversion by the manager where the release has it."""
    converted = {path.stem.rpartition("_")[2] for path in (folder / "patches").glob("webhook_in_*")}
    # The release does not apply this one.
    converted.discard("resourceflavors")
    found = []
    for path in sorted((folder / "bases").glob("*.yaml")):
        definition: Json = yaml.safe_load(path.read_text())
        if definition["spec"]["names"]["plural"] in converted:
            service = {"namespace": _NAMESPACE, "name": _SERVICE, "path": "/convert"}
            webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        found.append(definition)
    return found


def _webhooks(manifest: Path) -> list[Json]:
    """The webhook configurations without integrations that are not enabled."""
    found = []
    for document in yaml.safe_load_all(manifest.read_text()):
        kept = [it for it in document["webhooks"] if _is_served(it)]
        for webhook in kept:
            webhook["clientConfig"]["service"].update(namespace=_NAMESPACE, name=_SERVICE)
            if webhook["rules"][0]["apiGroups"] == ["batch"]:
                webhook["namespaceSelector"] = {"matchLabels": {SELECTS: "true"}}
        document["metadata"]["name"] = f"kueue-{document['metadata']['name']}"
        found.append({**document, "webhooks": kept})
    return found


def _is_served(webhook: Json) -> bool:
    return webhook["rules"][0]["apiGroups"][0] in (_GROUP, "batch")


def _mount_certificate(home: Cluster, folder: Path) -> None:
    """Copies the certificate that the manager has created to its folder."""

    def data() -> Json:
        found = get_one(home, "secret", _SECRET, namespace=_NAMESPACE).get("data") or {}
        return found if found.get("tls.crt") and found.get("tls.key") else {}

    created = wait_for(data, "Kueue has created its certificate", seconds=_START_SECONDS)
    # The manager waits for tls.crt.
    for name in ("tls.key", "tls.crt"):
        (folder / name).write_bytes(base64.b64decode(created[name]))


def _serves(home: Cluster) -> bool:
    """Whether the API server accepts a Kueue object: its webhooks, which must answer, do."""
    flavor = {"apiVersion": f"{_GROUP}/v1beta2", "kind": "ResourceFlavor"}
    probe = json.dumps({**flavor, "metadata": {"name": "probe"}, "spec": {}})
    done = home.kubectl("create", "--dry-run=server", "-f", "-", input=probe, check=False)
    return done.returncode == 0
