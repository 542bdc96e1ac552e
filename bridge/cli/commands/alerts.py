"""`bridge alerts`."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.base.join_settings import SettingsError


def alerts(
    *,
    runbook_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where you serve the runbooks, with {alert} for the name of an alert: "
            "https://docs.example/runbooks/{alert}.html. It becomes the annotation runbook_url. "
            "Default: the annotation runbook, with the page's path in the bridge's sources.",
            show_default=False,
        ),
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the PrometheusRule.")
    ] = "cluster-bridge",
) -> None:
    """Print the alerts as a PrometheusRule, as YAML for kubectl apply."""
    from bridge.cli.run_until_signal import fail
    from bridge.observability.alert_rules import alert_rules
    from bridge.rbac import rbac_manifests

    try:
        text = alert_rules(rbac_manifests.check_namespace(namespace), runbook_url)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    typer.echo(text, nl=False)
