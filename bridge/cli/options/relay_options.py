"""The options of `bridge join` for forwarded connections, a part of the table `JOIN`."""

from __future__ import annotations

from bridge.base.join_settings import (
    RELAY_IDLE,
    check_relay_address,
    check_relay_cidr,
    parse_ports,
)
from bridge.cli.options.option_declaration import ABSENT, Option
from bridge.cli.options.value_parsing import Duration, format_duration

FORWARDING = "Connections between the clusters (--network relay)"

RELAY: tuple[Option, ...] = (
    Option(
        "relay-address",
        "IP address at which home's nodes and pods reach the bridge, and on which it listens for "
        "them. Default: as --address.",
        FORWARDING,
        parse=check_relay_address,
        field="relay.address",
        in_cluster=ABSENT,
    ),
    Option(
        "relay-ports",
        "Ports to listen on, FIRST-LAST, for firewalls. Default: any free port. Each port of a "
        "Service takes one per ready pod, up to 16.",
        FORWARDING,
        parse=parse_ports,
        field="relay.ports",
    ),
    Option(
        "relay-cidr",
        "IP range at home, such as 10.77.0.0/24, for pods of headless Services. Each such pod has "
        "an IP on this machine, to which home's nodes have to route the range. Requires "
        "CAP_NET_ADMIN. Default: headless Services have no remote endpoints.",
        FORWARDING,
        metavar="CIDR",
        parse=check_relay_cidr,
        field="relay.cidr",
        in_cluster=ABSENT,
    ),
    Option(
        "relay-idle-timeout",
        "Time without traffic after which a connection is closed.",
        FORWARDING,
        kind=Duration(1),
        default=format_duration(RELAY_IDLE),
        field="relay.idle",
    ),
    Option(
        "relay-image",
        "Image of the bridge for relay agents, pods in the remote through which remote pods reach "
        "home's Services. The bridge must reach home's pods by IP, as it does in the home cluster. "
        "Default: no relay agents; nothing of the bridge runs in the remote.",
        FORWARDING,
        field="relay.image",
    ),
)
