"""Chooses the kubeconfig of a virtual node's remote for commands without ``--kubeconfig``.

In this order: the one from the options; the one of the last join, which the Node records, if its
file is on this machine, in a folder that the user may read; the one in the Secret of an
installation in home's cluster, if the credential may read it. The last one is untrusted input: see
`bridge.install.installation_lookup`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import Notify
from bridge.clusters.remote_identity import read_remote_identity
from bridge.install import installation_lookup
from bridge.install.installation_lookup import StoredKubeconfig
from bridge.node import join_record, node_object
from sync.base.private_file import memory_file
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, metadata, name_of


async def resolve_remote_kubeconfig(
    stack: AsyncExitStack,
    home: KubeClient,
    node: Object,
    option: KubeconfigRef | None,
    *,
    warn: Notify,
) -> KubeconfigRef | None:
    """The kubeconfig of the Node's remote, valid until ``stack`` is closed; None if there is none.

    ``warn`` receives a line for each ignored Secret. Raises KubeError.
    """
    if ref := option or _recorded_kubeconfig(node):
        return ref
    stored = await installation_lookup.read_stored_kubeconfig(home, name_of(node), node, warn=warn)
    return None if stored is None else stack.enter_context(kubeconfig_in_memory(stored))


async def check_remote_of_node(remote: KubeClient, node: Object) -> None:
    """Raises PreflightError if the cluster is not the remote that the Node represents, and
    KubeError."""
    identity = await read_remote_identity(remote, join_record.remote_namespaces(node))
    if not identity.is_remote_of(node):
        raise PreflightError(
            f"remote: {remote.endpoint.server} is not the remote cluster of node {name_of(node)}; "
            "name the kubeconfig of that cluster with --kubeconfig"
        )


def _recorded_kubeconfig(node: Object) -> KubeconfigRef | None:
    annotations = metadata(node).get("annotations") or {}
    files = str(annotations.get(node_object.ANNOTATION_KUBECONFIG) or "")
    # Unlike Path.is_file, it is also false for a file in a folder that the user may not read.
    if not any(os.path.isfile(file) for file in files.split(os.pathsep)):  # noqa: PTH113
        return None
    return KubeconfigRef(Path(files), annotations.get(node_object.ANNOTATION_CONTEXT))


@contextlib.contextmanager
def kubeconfig_in_memory(stored: StoredKubeconfig) -> Iterator[KubeconfigRef]:
    """The kubeconfig and its renewed token, as files in memory until the block ends."""
    origin = f"Secret {stored.secret} in the home cluster"
    with memory_file(stored.content) as path, memory_file(stored.renewed_token) as renewed:
        yield KubeconfigRef(Path(path), renewed_token=Path(renewed), origin=origin)
