"""The tutorial docs/tutorials/stateful-app.md on two real clusters, with a real PostgreSQL server
(`e2e.postgres_image`)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from e2e import postgres_image
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged
from e2e.kubectl import wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.storage_classes import hostpath

_TUTORIAL = Path(__file__).parent.parent / "docs/tutorials/stateful-app.md"
#: The StorageClass in the tutorial.
_CLASS = "remote-disks"


@pytest.fixture(scope="module")
def postgres(clusters: dict[str, Cluster]) -> None:
    """The remote's node has the image."""
    postgres_image.load(clusters["remote"], settings_from_environment().cache, silent)


def _manifest(storage_class: str) -> str:
    """The manifest of the tutorial, with another StorageClass."""
    _, found = re.findall(r"```yaml\n(.*?)```", _TUTORIAL.read_text(), re.DOTALL)
    assert found.count(_CLASS) == 1
    return str(found.replace(_CLASS, storage_class))


def _query(bridged: Bridged, statement: str) -> str:
    return bridged.kubectl("exec", "db-0", "--", "psql", "-U", "postgres", "-At", "-c", statement)


def _rows(bridged: Bridged) -> list[str]:
    bridged.kubectl("rollout", "status", "statefulset/db", "--timeout=90s")
    return _query(bridged, "SELECT name FROM guests ORDER BY name").split()


@pytest.mark.usefixtures("provisioners", "postgres")
def test_database_keeps_its_rows(storage: ProvisionedStorage) -> None:
    """Rows outlive the pod, a scale to zero, a restart of the bridge and an expansion, and are
    deleted with the PVC."""
    bridged = storage.bridged
    with hostpath(storage.remote, default=True), storage.home_class(_CLASS) as name:
        bridged.kubectl("create", "secret", "generic", "db", "--from-literal=password=example")
        bridged.apply(_manifest(name))
        bridged.kubectl("rollout", "status", "statefulset/db", "--timeout=120s")
        assert storage.phases() == {"data-db-0": "Bound"}
        (before,) = storage.remote_claims()
        _query(bridged, "CREATE TABLE guests (name text)")
        _query(bridged, "INSERT INTO guests VALUES ('Ada'), ('Grace')")

        bridged.kubectl("delete", "pod", "db-0", "--wait=true")
        assert _rows(bridged) == ["Ada", "Grace"]

        bridged.kubectl("scale", "statefulset/db", "--replicas=0")
        wait_for(lambda: not bridged.home_pods(), "no pod is left")
        assert storage.phases() == {"data-db-0": "Bound"}
        bridged.bridge.stop()
        bridged.bridge.start()
        bridged.kubectl("scale", "statefulset/db", "--replicas=1")
        assert _rows(bridged) == ["Ada", "Grace"]

        grow = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        bridged.kubectl("patch", "pvc", "data-db-0", "-p", json.dumps(grow))
        wait_for(
            lambda: storage.claims()["data-db-0"]["status"]["capacity"] == {"storage": "2Gi"},
            "the volume has grown",
        )
        _query(bridged, "INSERT INTO guests VALUES ('Mary')")
        assert _rows(bridged) == ["Ada", "Grace", "Mary"]
        (after,) = storage.remote_claims()
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        storage.clear()
