"""Detects whether home's NodeRestriction admission plugin confines the node's certificate.

The Node authorizer alone lets a node's certificate write every Node; NodeRestriction confines it to
its own, and reserves the labels ``node-restriction.kubernetes.io/``. No API shows which plugins are
enabled, so the bridge sends, as the node, what the plugin rejects: the creation of its own Node
with such a label, as a dry run. The plugin runs before the API server looks for an existing Node,
so the answer does not depend on one, and nothing is stored.
"""

from __future__ import annotations

import logging

from sync.kube.api_errors import AlreadyExists, ApiError, Forbidden
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from translators.object_accessors import Object
from translators.ownership_labels import DOMAIN

#: A label that NodeRestriction lets no node set.
_RESERVED_LABEL = "node-restriction.kubernetes.io/cluster-bridge-probe"

log = logging.getLogger(__name__)


async def is_restricted(home: KubeClient, node: str) -> bool | None:
    """Whether home rejects a reserved label on the node's own Node; None if home answers neither
    yes nor no, such as where a webhook does not support dry runs.

    ``home`` is the node's client. Raises KubeError if home does not answer.
    """
    probe: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "labels": {_RESERVED_LABEL: DOMAIN}},
    }
    try:
        await home.create(NODES, probe, dry_run=True, decode=False)
    except Forbidden:
        return True
    except AlreadyExists:
        return False
    except ApiError as error:
        log.debug("home: cannot determine whether NodeRestriction is enabled: %s", error)
        return None
    return False
