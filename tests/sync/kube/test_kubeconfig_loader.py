"""The loader of the kubernetes package, of which `sync.kube.kubeconfig_loader` replaces methods."""

from __future__ import annotations

import hashlib
import inspect
import tempfile
from pathlib import Path

import pytest
from kubernetes.aio.client import Configuration
from kubernetes.aio.config.kube_config import KubeConfigLoader

from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority
from tests.fakeapi.kubeconfig import kubeconfig, write

#: Digests of the methods that are replaced, and of those that call them or run unchanged. After a
#: change, compare them with the contract of the module first.
SOURCES = {
    "_load_oid_token": "7236de1a277137ec",
    "load_from_exec_plugin": "2495a955bb8743f3",
    "_load_authentication": "48794fcd9daed7b7",
    "_load_user_token": "d3b8236e02c8ffdb",
    "_load_user_pass_token": "d0436e0239e37c00",
    "_load_cluster_info": "11b19efd927ab767",
    "_set_config": "2b88a7e681dbbc45",
    "load_and_set": "b3af8d2274d4019b",
    "set_active_context": "ec1ebfe0302ccd28",
}


@pytest.mark.parametrize(("name", "digest"), SOURCES.items())
def test_methods_that_the_loader_relies_on_have_not_changed(name: str, digest: str) -> None:
    source = inspect.getsource(getattr(KubeConfigLoader, name))
    assert hashlib.sha256(source.encode()).hexdigest()[:16] == digest


async def test_reading_writes_no_files_and_sets_nothing_of_the_process(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    before = Configuration.get_default_copy()
    pair = authority.issue("someone")
    user = {"client-certificate": str(pair.cert), "client-key": str(pair.key)}
    cluster = {"certificate-authority": str(authority.cert)}
    config = kubeconfig("https://127.0.0.1:1", user=user, cluster=cluster)
    await load(KubeconfigRef(write(tmp_path / "config", config)), side="remote")
    after = Configuration.get_default_copy()
    assert (after.host, after.cert_file) == (before.host, before.cert_file)
