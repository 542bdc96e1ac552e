"""`bridge explain`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.base.command_output import Output, OutputOption, print_result
from bridge.cli.commands.completion import complete_nodes
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    RemoteContext,
    RemoteKubeconfig,
    check_argument,
    check_context,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object

if TYPE_CHECKING:
    from bridge.explain.cluster_lookup import ExplainSettings

_CLAIM = "PersistentVolumeClaim"
#: The kinds that can be explained, by the names that kubectl takes.
_KINDS = {
    **dict.fromkeys(("pod", "pods", "po"), "Pod"),
    **dict.fromkeys(("deployment", "deployments", "deploy"), "Deployment"),
    **dict.fromkeys(("pvc", "persistentvolumeclaim", "persistentvolumeclaims"), _CLAIM),
}
_USAGE = "name one pod/NAME, deployment/NAME or pvc/NAME, or a file with -f"


class Show(StrEnum):
    """The part of the result to print."""

    ALL = "all"
    REMOTE = "remote"


def explain(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TYPE/NAME",
            help="A pod, a Deployment or a PersistentVolumeClaim of home: pod/NAME, "
            "deployment/NAME or pvc/NAME.",
            show_default=False,
        ),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="File with a pod, or an object that has a pod template, which need not exist; - "
            "reads standard input.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace, unless the file has one. Default: that of home's context.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            help="Explain the object for this virtual node. Default: the pod's or claim's node, or "
            "the one that fits a pod best.",
            autocompletion=complete_nodes,
        ),
    ] = None,
    part: Annotated[
        Show,
        typer.Option("--show", help="remote: print only the pod of the remote cluster, as YAML."),
    ] = Show.ALL,
    output: OutputOption = Output.TABLE,
    kubeconfig: RemoteKubeconfig = None,
    context: RemoteContext = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Explain how a pod is translated to the remote, what it lacks, and why it does not run.

    Changes nothing in either cluster. If the remote is unreachable, the result lists what could not
    be checked. A Deployment is explained by its pod template, a PersistentVolumeClaim by the place
    of its data and the step that it waits for.
    """
    from bridge.cli.run_until_signal import fail, run
    from bridge.explain import json_report, text_report
    from bridge.explain.cluster_lookup import ExplainSettings, look_up_pod

    kind, full_name = _target(target or [])
    if bool(full_name) == (file is not None):
        raise fail(_USAGE, code=2)
    check_context(kubeconfig, context)
    check_argument(node, "--node")
    where, _, name = full_name.rpartition("/")
    check_argument(name if full_name else None, "NAME", "the name of an object")
    check_argument(where or None, "NAMESPACE", "a namespace name")
    check_argument(namespace or None, "--namespace", "a namespace name")
    settings = ExplainSettings(
        home=KubeconfigRef(home_kubeconfig, home_context),
        remote=KubeconfigRef(kubeconfig, context) if kubeconfig else None,
        namespace=where or namespace or "",
        kind=kind,
        name=name,
        manifest=_read(file) if file is not None else None,
        node=node or "",
    )
    if kind == _CLAIM:
        _explain_claim(settings, part, output)
        return
    facts = run(lambda _: look_up_pod(settings), stops=False)
    if part is Show.REMOTE:
        made = json_report.translated_pod(facts)
        if made is None:
            raise fail("home: there is no virtual node; bridge join creates one")
        print_result(made.pod, Output.YAML if output is Output.TABLE else output, lambda: "")
        return
    answer = json_report.build_report(facts)
    print_result(answer, output, lambda: text_report.render_report(answer))


def _explain_claim(settings: ExplainSettings, part: Show, output: Output) -> None:
    from bridge.cli.run_until_signal import fail, run
    from bridge.explain.claim_lookup import look_up_claim
    from bridge.explain.claim_report import build_claim_report, render_claim_report

    if part is not Show.ALL:
        raise fail("--show needs a pod, a Deployment or a file", code=2)
    answer = build_claim_report(run(lambda _: look_up_claim(settings), stops=False))
    print_result(answer, output, lambda: render_claim_report(answer))


def _target(words: list[str]) -> tuple[str, str]:
    """Kind and name of ``TYPE/NAME``, or of the previous ``pod [NAMESPACE/]NAME``; the name is ""
    if there is none."""
    from bridge.cli.run_until_signal import fail

    if not words:
        return "Pod", ""
    word, slash, name = words[0].partition("/")
    kind = _KINDS.get(word.lower())
    if kind is None or len(words) > 2 or (slash and (len(words) > 1 or not name)):
        given = " ".join(words)
        raise fail(f'"{given}" is not an object to explain; {_USAGE}', code=2)
    return kind, name if slash else " ".join(words[1:])


def _read(file: Path) -> Object:
    """The first object of the file that is a pod, or has a template of one."""
    import yaml

    from bridge.cli.run_until_signal import fail
    from bridge.explain.cluster_lookup import ManifestError, pod_of_manifest
    from sync.kube.kubeconfig import YAML_ERRORS, KubeconfigError, Loader

    if file == Path():
        what = "is empty, or the current directory"
        raise fail(f"--file: the path {what}; name a file, or - for standard input", code=2)
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        documents = yaml.load_all(text, Loader)
        objects = [document for document in documents if isinstance(document, dict)]
    except OSError as error:
        raise fail(f"{file}: {error.strerror}", code=2) from None
    except YAML_ERRORS:
        raise fail(f"{file}: the YAML is invalid", code=2) from None
    except KubeconfigError as error:
        raise fail(f"{file}: {error}", code=2) from None
    try:
        if (found := next(filter(None, map(pod_of_manifest, objects)), None)) is not None:
            return found
    except ManifestError as error:
        raise fail(f"{file}: {error}", code=2) from None
    kinds = ", ".join(str(it.get("kind")) for it in objects) or "nothing"
    raise fail(f"{file}: contains no pod and no pod template, but {kinds}", code=2)
