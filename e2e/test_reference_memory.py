"""One namespace refers to 300 MiB of ConfigMaps: a bridge with the memory limit of an installation
serves others, and stays below its limit."""

from __future__ import annotations

import base64
import json
import os
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3
import yaml

from e2e import service_accounts
from e2e.bench.pods import process_usage
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import create_namespace, get, wait_for
from e2e.limited_memory import limited_memory
from e2e.workload_manifests import pod, shell

COUNT = 300
MIB = 2**20
#: MB that the bridge may need: a quarter of its limit, which is less than the pod refers to.
MAX_MB = 256


def _create_config_maps(cluster: Cluster, namespace: str) -> None:
    """Creates `COUNT` ConfigMaps of almost a mebibyte each; kubectl would take minutes."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(server["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    files = []
    for key in ("client-certificate-data", "client-key-data"):
        file = cluster.kubeconfig.with_name(f"{os.getpid()}-{key}")
        file.write_bytes(base64.b64decode(user[key]))
        files.append(file)
    context.load_cert_chain(*map(str, files))
    for file in files:
        file.unlink()
    pool = urllib3.PoolManager(ssl_context=context, maxsize=4)
    url = f"{server['server']}/api/v1/namespaces/{namespace}/configmaps"

    def create(number: int) -> None:
        data = {"k": f"{number:06}" + "x" * (MIB - 2**14)}
        body = {"metadata": {"name": f"large-{number}"}, "data": data}
        answer = pool.request(
            "POST", url, body=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert answer.status == 201, answer.data

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(create, range(COUNT)))


@pytest.mark.alone
def test_one_namespace_refers_to_300_mib_and_others_are_served(bridged: Bridged) -> None:
    bridged.apply(pod(bridged.node, "first"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
    tenant = f"{bridged.namespace}-large"
    there = bridged.remote_namespace.replace(bridged.namespace, tenant)
    create_namespace(bridged.home, tenant)
    service_accounts.bind(bridged.home, bridged.node, tenant)
    try:
        with limited_memory(bridged.bridge, tenant) as limited:
            _create_config_maps(bridged.home, tenant)
            sources = [{"configMap": {"name": f"large-{number}"}} for number in range(COUNT)]
            volumes = [{"name": "all", "projected": {"sources": sources[:1]}}]
            volumes += [{"name": f"v{number}", **each} for number, each in enumerate(sources[1:])]
            main = shell("main", "sleep 3600")
            large = pod(bridged.node, "large", containers=[main], volumes=volumes)
            bridged.home.kubectl("apply", "-n", tenant, "-f", "-", input=large)
            bridged.apply(pod(bridged.node, "other"))
            bridged.kubectl("wait", "--for=condition=Ready", "pod/other", "--timeout=60s")
            wait_for(
                lambda: get(bridged.remote, "pods", namespace=there),
                "the pod with all ConfigMaps is created",
                seconds=200,
            )
            usage = process_usage.account(limited.pid)
            assert usage.peak < MAX_MB, usage
            delete = ("delete", "-n", tenant, "pod", "large", "--grace-period=1", "--timeout=60s")
            bridged.home.kubectl(*delete)
    finally:
        bridged.home.kubectl("delete", "namespace", tenant, "--wait=false", "--ignore-not-found")
        bridged.remote.kubectl("delete", "namespace", there, "--ignore-not-found", "--timeout=90s")
