"""`bridge coredns`: configuration of the remote's DNS server."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bridge.cli.options.common_options import HomeContext, HomeKubeconfig, Node
from bridge.dns.coredns_server_block import DEFAULT_DOMAIN
from sync.kube.kubeconfig_ref import KubeconfigRef


def coredns(
    node: Node,
    *,
    cluster_domain: Annotated[
        str, typer.Option(metavar="DOMAIN", help="Cluster domain of the remote.")
    ] = DEFAULT_DOMAIN,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Print a server block for the remote's CoreDNS with which home's names resolve there.

    With it, web.shop, web.shop.svc and web.shop.svc.cluster.local mean the same in pods of the
    virtual node as at home, whatever the namespace template. An administrator of the remote adds it
    to the Corefile; nothing is changed in either cluster.
    """
    from bridge.base.join_settings import SettingsError
    from bridge.cli.run_until_signal import fail, run
    from bridge.dns import coredns_server_block

    try:
        domain = coredns_server_block.check_domain(cluster_domain)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    home = KubeconfigRef(home_kubeconfig, home_context)

    async def command(_: asyncio.Event) -> None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.node import join_record
        from bridge.status import status_client

        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                found = await status_client.get_node(client, node)
        policy, _has_record = join_record.read_policy(found, "")
        block = coredns_server_block.server_block(policy.identity, domain)
        typer.echo(block, nl=False)

    run(command, stops=False)
