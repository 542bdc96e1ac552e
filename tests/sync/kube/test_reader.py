"""The reader comes without the package around it, and leaves that package to others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakeapi.kubeconfig import credential, kubeconfig, plugin, write


def printed(script: str, *args: str | Path) -> str:
    """What a Python of its own prints, in which nothing has been imported yet."""
    command = [sys.executable, "-c", script, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


READ = """
import asyncio, sys
from pathlib import Path
from sync.kube.access import KubeconfigRef, load

access = asyncio.run(load(KubeconfigRef(Path(sys.argv[1])), side="home"))
print(access.server, access.authorization())
print([name for name in sys.modules if "kubernetes" in name or "pydantic" in name])
"""


def test_a_credential_is_read_without_the_models(tmp_path: Path) -> None:
    user = plugin(tmp_path / "plugin", credential({"token": "abc"}))
    path = write(tmp_path / "config", kubeconfig("https://one.test", user=user))
    assert printed(READ, path).splitlines() == [
        "https://one.test {'Authorization': 'Bearer abc'}",
        "[]",
    ]


OTHERS = """
from sync.kube.reader import reader

reader()
from kubernetes.aio import client, config
from kubernetes.aio.config import kube_config

print(client.V1Pod().__class__.__name__, kube_config.ApiClient is client.ApiClient)
print(reader().ConfigException is config.ConfigException)
"""


def test_the_package_is_whole_for_others() -> None:
    assert printed(OTHERS).splitlines() == ["V1Pod True", "False"]


WHOLE = """
import {first}
from sync.kube import reader
{change}
from kubernetes.aio import config
print(reader.reader().load_kube_config is config.load_kube_config)
"""


@pytest.mark.parametrize(
    ("first", "change"),
    [
        ("kubernetes", ""),
        # A version whose reader needs more than the two names.
        ("sys", "reader._MENTIONED = ()\nreader.reader()"),
    ],
    ids=["imported before", "of another shape"],
)
def test_it_is_imported_whole_where_it_has_to_be(first: str, change: str) -> None:
    assert printed(WHOLE.format(first=first, change=change)) == "True\n"
