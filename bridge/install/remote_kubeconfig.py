"""Which kubeconfig leads to the remote of a virtual node, for commands that are not told.

In this order: the one that is given; that of the last join, which the Node names, where it is on
this machine; that in the Secret of an installation in home's cluster, where who asks may read it.

The last one is untrusted input: `bridge.install.uninstall` says which Secrets count, and what their
kubeconfig may hold. One that is ignored is told to ``warn``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from bridge.install import uninstall
from bridge.node import node_object
from sync.kube.client import KubeClient
from sync.kube.credentials import KubeconfigRef
from translators.objects import Object, metadata, name_of


class RemoteKubeconfig(NamedTuple):
    """A kubeconfig, and how people are told which one."""

    ref: KubeconfigRef
    description: str


async def resolve_remote_kubeconfig(
    stack: AsyncExitStack,
    home: KubeClient,
    known: Object,
    given: KubeconfigRef | None,
    *,
    warn: Callable[[str], None],
) -> RemoteKubeconfig | None:
    """That of the Node ``known``, good while ``stack`` is; None where there is none here.

    Raises KubeError.
    """
    if ref := given or _remembered(known):
        return RemoteKubeconfig(ref, str(ref))
    found = await uninstall.read_stored_kubeconfig(home, name_of(known), known, warn=warn)
    if found is None:
        return None
    ref = KubeconfigRef(stack.enter_context(temporary_kubeconfig(found.content)))
    return RemoteKubeconfig(ref, f"the Secret {found.secret} at home")


def _remembered(known: Object) -> KubeconfigRef | None:
    annotations = metadata(known).get("annotations") or {}
    files = str(annotations.get(node_object.ANNOTATION_KUBECONFIG) or "")
    if not any(Path(file).is_file() for file in files.split(os.pathsep) if file):
        return None
    return KubeconfigRef(Path(files), annotations.get(node_object.ANNOTATION_CONTEXT))


@contextlib.contextmanager
def temporary_kubeconfig(kubeconfig: bytes) -> Iterator[Path]:
    """A file of this user's alone, while the block runs."""
    with tempfile.TemporaryDirectory(prefix="cluster-bridge-") as folder:
        path = Path(folder) / "kubeconfig"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(kubeconfig)
        yield path
