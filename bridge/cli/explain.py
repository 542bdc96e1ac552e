"""`bridge explain`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bridge.base.output import Output, OutputOption, print_result
from bridge.base.settings import SettingsError, check_name
from bridge.cli.shared_options import HomeContext, HomeKubeconfig, RemoteContext, RemoteKubeconfig
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.objects import Object

explain = typer.Typer(
    help="Explain what will happen, or has happened, to a pod.", no_args_is_help=True
)


class Show(StrEnum):
    """Which part of the answer is shown."""

    ALL = "all"
    REMOTE = "remote"


@explain.command("pod")
def explain_pod(
    pod: Annotated[
        str | None,
        typer.Argument(metavar="[NAMESPACE/]NAME", help="A pod of home.", show_default=False),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="A file with a pod, or with what has a template of one (a Deployment, say), that "
            "need not exist; - reads standard input.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace of a pod or file that names none. Default: that of home's context.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            help="Explain it for this virtual node. Default: the pod's, or else the one that suits "
            "it best."
        ),
    ] = None,
    part: Annotated[
        Show,
        typer.Option(
            "--show", help="remote: only the object that goes to the remote cluster, as YAML."
        ),
    ] = Show.ALL,
    output: OutputOption = Output.TABLE,
    kubeconfig: RemoteKubeconfig = None,
    context: RemoteContext = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """What a pod becomes in the remote and why, what it lacks, and why it does not run.

    Nothing is changed in either cluster. It works without the remote too, and says what it could
    not look at.
    """
    from bridge.cli.runner import fail, run
    from bridge.explain import json_report, text_report
    from bridge.explain.cluster_lookup import ExplainSettings, look_up_pod

    if (pod is None) == (file is None):
        raise fail("name one pod, as NAMESPACE/NAME, or a file with -f", code=2)
    if context and not kubeconfig:
        raise fail("--context is one of a kubeconfig; name that with --kubeconfig", code=2)
    try:
        chosen = check_name(node, "--node") if node is not None else ""
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    where, _, name = (pod or "").rpartition("/")
    settings = ExplainSettings(
        home=KubeconfigRef(home_kubeconfig, home_context),
        remote=KubeconfigRef(kubeconfig, context) if kubeconfig else None,
        namespace=where or namespace or "",
        name=name,
        manifest=_read(file) if file is not None else None,
        node=chosen,
    )
    facts = run(lambda _: look_up_pod(settings), stops=False)
    if part is Show.REMOTE:
        made = json_report.translated_pod(facts)
        if made is None:
            raise fail("home: there is no virtual node, so that nothing goes anywhere")
        print_result(made.pod, Output.YAML if output is Output.TABLE else output, lambda: "")
        return
    answer = json_report.build_report(facts)
    print_result(answer, output, lambda: text_report.render_report(answer))


def _read(file: Path) -> Object:
    """The first object of the file that is a pod, or has a template of one."""
    import yaml

    from bridge.cli.runner import fail
    from bridge.explain.cluster_lookup import pod_of_manifest

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        objects = [it for it in yaml.safe_load_all(text) if isinstance(it, dict)]
    except OSError as error:
        raise fail(f"{file}: {error.strerror}", code=2) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise fail(f"{file}: it is not YAML", code=2) from None
    for obj in objects:
        if (found := pod_of_manifest(obj)) is not None:
            return found
    kinds = ", ".join(str(it.get("kind")) for it in objects) or "nothing"
    raise fail(f"{file}: neither a pod nor a template of one is in it, but {kinds}", code=2)
