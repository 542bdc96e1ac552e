"""`bridge placement`: run the placer, install it, and answer where pods go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bridge.base.command_output import (
    NamesOutputOption,
    Output,
    OutputOption,
    format_table,
    print_result,
)
from bridge.base.join_settings import SettingsError
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    LogFormatOption,
    TlsCertFile,
    TlsPrivateKeyFile,
    tls_files,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object

if TYPE_CHECKING:
    from bridge.placement.cluster_snapshot import Snapshot

#: Versions of the API MutatingAdmissionPolicy.
Admission = Literal["v1", "v1beta1", "none"]


def run_placement(
    *,
    kueue: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(
            help="Also decide Kueue's admission check cluster-bridge.io/fits: workloads are "
            "admitted to one remote that can hold all of their pods. auto: while Kueue is "
            "installed."
        ),
    ] = "auto",
    port: Annotated[
        int | None,
        typer.Option(
            help="Port for HTTPS with /livez, /readyz and /metrics; 0 is any free port. /metrics "
            "needs a bearer token of home that may get this path. Default: no port.",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            help="IP address for --port. Default: all addresses.",
            show_default=False,
        ),
    ] = "",
    tls_cert_file: TlsCertFile = None,
    tls_private_key_file: TlsPrivateKeyFile = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    log_format: LogFormatOption = "console",
) -> None:
    """Place pods by PlacementPolicies, until Ctrl-C.

    Needs access to the home cluster alone. Of several processes one places pods, elected by the
    Lease placement in namespace cluster-bridge; the others stand by.
    """
    from bridge.cli.reexec_to_free_memory import LogSettings, configure_reports
    from bridge.cli.run_until_signal import STOP_SECONDS, fail, report_line, run
    from bridge.placement.monitoring_server import MonitoringSettings
    from bridge.placement.process import run_placer

    try:
        files = tls_files(tls_cert_file, tls_private_key_file)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    if port is None and (address or files):
        raise fail("--address and --tls-cert-file require --port", code=2)
    monitoring = None if port is None else MonitoringSettings(port, address, files)
    home = KubeconfigRef(home_kubeconfig, home_context)
    configure_reports(LogSettings(log_format=log_format))
    run(
        lambda stop: run_placer(home, kueue, monitoring=monitoring, notify=report_line, stop=stop),
        exit_within=STOP_SECONDS,
    )


def render_placement(
    *,
    image: Annotated[
        str,
        typer.Option(
            help="Image of the bridge, for a Deployment of the placer. Default: no Deployment; "
            "start bridge placement run elsewhere.",
            show_default=False,
        ),
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the placer.")
    ] = "cluster-bridge",
    replicas: Annotated[int, typer.Option(min=1, max=5, help="Replicas of the placer.")] = 2,
    admission: Annotated[
        Admission,
        typer.Option(
            help="Version of MutatingAdmissionPolicy that home serves: v1 from Kubernetes 1.36, "
            "v1beta1 in 1.34 and 1.35 with its feature gate. none: without the policy no pod is "
            "held for the placer."
        ),
    ] = "v1",
    release_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="ServiceAccount of a bridge that may remove the gates of held pods while no "
            "placer runs; repeatable. It may then patch pods of all namespaces.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print what placement by policy needs at home, as YAML for kubectl apply.

    The CustomResourceDefinition of PlacementPolicies, the placer with its permissions, and the
    admission policy that holds new pods for the placer.
    """
    from bridge.cli.commands.rbac import print_objects
    from bridge.cli.run_until_signal import fail
    from bridge.placement.manifests import PlacementInstallation, placement_objects
    from bridge.rbac import rbac_manifests

    try:
        options = PlacementInstallation(
            image=image,
            namespace=rbac_manifests.check_namespace(namespace),
            replicas=replicas,
            admission="" if admission == "none" else admission,
            release_by=[rbac_manifests.parse_account(it) for it in release_by or ()],
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(placement_objects(options))


def simulate_placement(
    *,
    file: Annotated[
        Path,
        typer.Option(
            "--file",
            "-f",
            help="File with pods, Deployments, StatefulSets, Jobs or CronJobs; - reads standard "
            "input.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        Path | None,
        typer.Option(
            help="File with PlacementPolicies to use instead of those of home, which need not "
            "know the resource.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of objects that name none.")
    ] = "default",
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Show where the pods of a manifest would be placed now, and why not elsewhere.

    Creates nothing, and needs no running placer. The volumes of pods are not considered.
    """
    from bridge.cli.run_until_signal import fail
    from bridge.placement import simulation

    objects = _read(file)
    policies = _read_policies(policy) if policy is not None else None
    snapshot = _snapshot(KubeconfigRef(home_kubeconfig, home_context), policies)
    if policies is None and not snapshot.policies_defined:
        raise fail("home: PlacementPolicies are not defined; name a file with --policy")
    results = simulation.simulate(snapshot, objects, namespace)
    if not results:
        raise fail(f"{file}: contains no pod and no workload", code=2)
    answer = simulation.as_json(snapshot, results)
    print_result(answer, output, lambda: simulation.as_text(answer))


def list_placement(
    *,
    output: NamesOutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """List the PlacementPolicies with their tiers, and the pods that each has where."""
    from bridge.cli.run_until_signal import fail
    from bridge.placement.process import NOT_DEFINED
    from bridge.placement.simulation import shown

    snapshot = _snapshot(KubeconfigRef(home_kubeconfig, home_context), None)
    if not snapshot.policies_defined:
        raise fail(NOT_DEFINED)
    state = snapshot.state
    found: list[Object] = [
        {
            "policy": it.name,
            "priority": it.priority,
            "tiers": [tier.name for tier in it.tiers],
            "pods": {shown(place): count for place, count in state.counts(it.name).items()},
            "invalid": None,
        }
        for it in sorted(state.policies.values(), key=lambda it: (-it.priority, it.name))
    ]
    found += [
        {"policy": name, "priority": None, "tiers": [], "pods": {}, "invalid": reason}
        for name, reason in sorted(state.invalid_policies.items())
    ]
    placer = snapshot.placer or None
    print_result(
        {"policies": found, "placer": placer, "notChecked": snapshot.not_checked},
        output,
        lambda: _policy_table(found, placer),
        names=lambda: [f"placementpolicy/{it['policy']}" for it in found],
    )


def _policy_table(found: list[Object], placer: str | None) -> str:
    rows = [
        [
            it["policy"],
            "" if it["priority"] is None else str(it["priority"]),
            it["invalid"] or " > ".join(it["tiers"]),
            ", ".join(f"{place}: {count}" for place, count in it["pods"].items()) or "-",
        ]
        for it in found
    ]
    table = format_table(["policy", "priority", "tiers", "pods"], rows)
    return f"{table}\n\nplacer: {placer or 'none runs; `bridge placement run` starts one'}"


def _snapshot(home: KubeconfigRef, policies: list[Object] | None) -> Snapshot:
    from bridge.cli.run_until_signal import run
    from bridge.clusters.connection import as_preflight_errors, connect
    from bridge.placement.cluster_snapshot import read_snapshot

    async def read() -> Snapshot:
        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                return await read_snapshot(client, policies)

    return run(lambda _: read(), stops=False)


def _read_policies(file: Path) -> list[Object]:
    from bridge.cli.run_until_signal import fail
    from translators.placement.placement_policy import KIND, PolicyError, parse_policy

    found = [it for it in _read(file) if it.get("kind") == KIND]
    if not found:
        raise fail(f"{file}: contains no {KIND}", code=2)
    try:
        for it in found:
            parse_policy(it)
    except PolicyError as error:
        raise fail(f"{file}: {error}", code=2) from None
    return found


def _read(file: Path) -> list[Object]:
    import yaml

    from bridge.cli.run_until_signal import fail

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        found: list[Any] = list(yaml.safe_load_all(text))
    except OSError as error:
        raise fail(f"{file}: {error.strerror}", code=2) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise fail(f"{file}: the YAML is invalid", code=2) from None
    return [it for it in found if isinstance(it, dict)]
