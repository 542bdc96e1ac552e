"""What the join of a node was asked for, as the Node tells it.

`bridge explain` translates pods as the bridge does, on another machine maybe, and so has to know by
which policy. The annotation has what decides that, and no secret: names, labels and addresses.
"""

from __future__ import annotations

import json
from typing import Any, get_args

from bridge.node import model
from bridge.settings import DEFAULT_TEMPLATE
from translators.naming import DOMAIN, Identity
from translators.policy import HostPort, Network, Policy
from translators.types import Object, metadata, name_of

#: The policy as JSON, but for what the Node says elsewhere (its name and address, home's name).
ANNOTATION_OPTIONS = f"{DOMAIN}/options"


def told(policy: Policy) -> str:
    """The annotation's text."""
    return json.dumps(options(policy), separators=(",", ":"), sort_keys=True)


def options(policy: Policy) -> Object:
    """What was asked for, under the names of `join`'s options."""
    api = policy.home_api
    return {
        "namespaceTemplate": policy.identity.template,
        "network": policy.network,
        "relayCidr": policy.relay_cidr or None,
        "daemonsets": policy.daemonsets,
        "serviceAccounts": policy.service_accounts,
        "homeApiAddress": list(api) if api is not None else None,
        "nodeSelector": dict(policy.node_selector),
        "unschedulableTimeout": policy.unschedulable_timeout,
    }


def policy_of(node: Object, home_id: str) -> tuple[Policy, bool]:
    """The policy of the bridge that registered the Node, and whether the Node tells it: one that an
    older bridge registered has the defaults."""
    annotations = metadata(node).get("annotations") or {}
    said = _read(annotations.get(ANNOTATION_OPTIONS))
    api = said.get("homeApiAddress")
    identity = Identity(
        home_id=home_id,
        home_name=str(annotations.get(model.ANNOTATION_HOME_NAME) or home_id[:8]),
        node=name_of(node),
        template=str(said.get("namespaceTemplate") or DEFAULT_TEMPLATE),
    )
    policy = Policy(
        identity,
        _address(node),
        network=said.get("network") or "flat",
        relay_cidr=said.get("relayCidr") or "",
        daemonsets=said.get("daemonsets") or "skip",
        service_accounts=said.get("serviceAccounts") or "home",
        home_api=HostPort(str(api[0]), int(api[1])) if api else None,
        node_selector=said.get("nodeSelector") or {},
        unschedulable_timeout=said.get("unschedulableTimeout"),
    )
    return policy, bool(said)


def network_told(node: Object) -> Network | None:
    """How pods reach each other, by what the Node tells; None where it does not."""
    annotations = metadata(node).get("annotations") or {}
    said = _read(annotations.get(ANNOTATION_OPTIONS)).get("network")
    return said if said in get_args(Network) else None


def relay_cidr_told(node: Object | None) -> str:
    """Where pods behind headless Services have addresses, by what the Node tells; "" where it
    tells none."""
    annotations = metadata(node or {}).get("annotations") or {}
    said = _read(annotations.get(ANNOTATION_OPTIONS)).get("relayCidr")
    return said if isinstance(said, str) else ""


def _read(text: str | None) -> Object:
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        found = None  # Somebody wrote something else there.
    return found if isinstance(found, dict) else {}


def _address(node: Object) -> str:
    for address in (node.get("status") or {}).get("addresses") or ():
        if address.get("type") == "InternalIP":
            return str(address.get("address"))
    return ""
