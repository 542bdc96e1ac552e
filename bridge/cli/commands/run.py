"""`bridge run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bridge.cli.commands import config as config_commands
from bridge.cli.options.common_options import (
    ApproveRequests,
    HomeContext,
    HomeKubeconfig,
    check_traces,
)
from bridge.cli.options.join_options import PROCESS
from bridge.cli.options.option_declaration import given, is_given, with_options
from bridge.cli.reexec_to_free_memory import (
    LogSettings,
    ObjectsRef,
    ProfileSettings,
    ServeRequest,
    start,
)
from sync.kube.kubeconfig_ref import KubeconfigRef


@with_options(*PROCESS)
def run(
    ctx: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file with the joins (docs/reference/config-file.md).",
            show_default=False,
        ),
    ] = None,
    remotes: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Namespace of home whose Remote objects are the joins (bridge crds).",
            show_default=False,
        ),
    ] = None,
    cluster_profiles: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Namespace of home whose ClusterProfiles (SIG Multicluster) are the joins.",
            show_default=False,
        ),
    ] = None,
    clusterprofile_provider_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON file with the access providers of ClusterProfiles that are programs, as of "
            "sigs.k8s.io/cluster-inventory-api. Default: secretreader and kubeconfig-secretreader "
            "alone, which the bridge implements.",
            show_default=False,
        ),
    ] = None,
    join_options: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file with the options of bridge join for every ClusterProfile, by name.",
            show_default=False,
        ),
    ] = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    shard: Annotated[
        Literal["auto", "off"],
        typer.Option(
            help="auto: replicas of this command with the same remotes divide them, and take over "
            "from each other. off: each replica serves or stands by for all remotes."
        ),
    ] = "auto",
    health_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port of /livez and /readyz over plain HTTP for probes, with --remotes or "
            "--cluster-profiles. The process is ready once each of its joins has started, or has "
            "failed. Default: no port.",
            show_default=False,
        ),
    ] = None,
    token_secret: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Secret in the pod's namespace, for a bridge in the home cluster: its replicas "
            "keep the remotes' renewed tokens there, and read them where it is mounted "
            "(bridge fleet render). Default: files.",
            show_default=False,
        ),
    ] = None,
    yes: ApproveRequests = False,
    # For one release: `bridge config` has taken their place.
    schema: Annotated[bool, typer.Option("--schema", hidden=True)] = False,
    check: Annotated[bool, typer.Option("--check", hidden=True)] = False,
    **values: Any,
) -> None:
    """Join one or more remote clusters in one process, from a configuration file or from objects.

    Each join is a virtual node of its own, with the options of bridge join as keys. The bridge
    retries a join that fails; the others keep running. Changes of the file, or of the objects, take
    effect while the bridge runs. Runs in the foreground until Ctrl-C.
    """
    from bridge.cli.run_until_signal import fail

    sources = {"--config": config, "--remotes": remotes, "--cluster-profiles": cluster_profiles}
    given_sources = [flag for flag, it in sources.items() if it is not None]
    if len(given_sources) > 1:
        raise fail(f"{' and '.join(given_sources)} exclude each other", code=2)
    profile_files = {
        "--clusterprofile-provider-file": clusterprofile_provider_file,
        "--join-options": join_options,
    }
    if cluster_profiles is None:
        if unused := [flag for flag, it in profile_files.items() if it is not None]:
            raise fail(f"{', '.join(unused)}: use with --cluster-profiles", code=2)
        profiles = None
    else:
        profiles = _profile_settings(clusterprofile_provider_file, join_options)
    if (namespace := remotes or cluster_profiles) is not None:
        objects = ObjectsRef(KubeconfigRef(home_kubeconfig, home_context), namespace, profiles)
        request = ServeRequest(
            (),
            assume_yes=yes,
            objects=objects,
            shares=shard == "auto",
            health_port=health_port,
            token_secret=token_secret,
        )
        _run_objects(request, values)
        return
    unused = [it.flag for it in given(ctx, PROCESS)]
    unused += ["--home-kubeconfig"] if is_given(ctx, "home_kubeconfig") else []
    unused += ["--home-context"] if is_given(ctx, "home_context") else []
    of_objects = {"--health-port": health_port, "--token-secret": token_secret}
    unused += [flag for flag, it in of_objects.items() if it is not None]
    if unused:
        raise fail(
            f"{', '.join(unused)}: use with --remotes or --cluster-profiles; the file has keys for "
            "them",
            code=2,
        )
    if schema:
        config_commands.schema()
        return
    if config is None:
        raise fail(
            "--config is missing: name a file (bridge config schema describes it), or with "
            "--remotes or --cluster-profiles a namespace with such objects",
            code=2,
        )
    if check:
        config_commands.validate(config)
        return
    from bridge.base.join_settings import SettingsError
    from bridge.cli.run_config_file import read
    from bridge.fleet.config_file_source import followed

    file = followed(config)
    try:
        parts, logs = read(config)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    check_traces(logs.traces or None)
    start(ServeRequest(parts, logs, assume_yes=yes, file=file, shares=shard == "auto"))


def _profile_settings(providers: Path | None, join_options: Path | None) -> ProfileSettings:
    from bridge.base.join_settings import SettingsError
    from bridge.cli import profile_options
    from bridge.cli.run_until_signal import fail

    try:
        return ProfileSettings(
            profile_options.read_plugins(providers) if providers is not None else (),
            profile_options.read_options(join_options) if join_options is not None else {},
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None


def _run_objects(request: ServeRequest, values: Mapping[str, Any]) -> None:
    from bridge.base.join_settings import SettingsError, check_secret_name
    from bridge.cli.run_until_signal import fail

    try:
        if request.token_secret is not None:
            check_secret_name(request.token_secret, "--token-secret")
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    traces = check_traces(values["traces"])
    start(replace(request, logs=LogSettings(values["verbose"], values["log_format"], traces)))
