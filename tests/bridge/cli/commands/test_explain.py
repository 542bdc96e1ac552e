"""`bridge explain`: targets, files and output formats."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from bridge.base.command_error import PreflightError
from bridge.explain import claim_lookup, cluster_lookup
from bridge.explain.candidate_ranking import Candidate
from bridge.explain.claim_lookup import ClaimFacts
from bridge.explain.cluster_lookup import ExplainSettings, PodFacts
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests import objects
from tests.bridge.cli.conftest import Invoke
from translators.explain.claim_steps import ClaimObjects
from translators.object_accessors import Object
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

GOLDEN = Path(__file__).parents[3] / "translators" / "golden"


def _facts() -> PodFacts:
    pod = objects.pod("web")
    pod["metadata"]["uid"] = "1"
    node: Object = {
        "metadata": {"name": "burst"},
        "status": {
            "allocatable": {"pods": "1"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    policy = Policy(Identity("0" * 16, "h", "burst"), "10.0.0.1", service_accounts="none")
    chosen = Candidate(node, policy, options_recorded=True, failures=[], skipped=False)
    return PodFacts(pod, stored=True, candidates=[chosen], chosen=chosen)


@dataclass
class PodLookupCalls:
    """Replaces `bridge.explain.cluster_lookup.look_up_pod`: records its calls and returns
    ``facts``."""

    settings: list[ExplainSettings] = field(default_factory=list)
    facts: PodFacts = field(default_factory=_facts)

    async def look_up_pod(self, settings: ExplainSettings) -> PodFacts:
        self.settings.append(settings)
        return self.facts


@pytest.fixture
def lookup(monkeypatch: pytest.MonkeyPatch) -> PodLookupCalls:
    """Commands find the facts of these calls instead of a pod in a cluster."""
    calls = PodLookupCalls()
    monkeypatch.setattr(cluster_lookup, "look_up_pod", calls.look_up_pod)
    return calls


def test_text_starts_with_the_summary(invoke: Invoke, lookup: PodLookupCalls) -> None:
    done = invoke("explain", "pod", "default/web")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "pod default/web can run on node burst, in the remote as default-h/web"
    assert "placement:" in lines
    assert "  changed  metadata.namespace: default → default-h" in lines
    assert "not examined:" in lines
    assert done.stderr == ""


def test_json_has_the_whole_report(invoke: Invoke, lookup: PodLookupCalls) -> None:
    answer = json.loads(invoke("explain", "pod", "default/web", "-o", "json").stdout)
    assert (answer["state"], answer["pod"]["name"]) == ("WouldRun", "web")


def test_error_is_one_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: ExplainSettings) -> PodFacts:
        raise PreflightError("what, where, what next")

    monkeypatch.setattr(cluster_lookup, "look_up_pod", fail)
    done = invoke("explain", "pod", "a/b")
    assert (done.exit_code, done.stderr) == (1, "error: what, where, what next\n")


def test_show_remote_prints_only_the_remote_pod(invoke: Invoke, lookup: PodLookupCalls) -> None:
    made = yaml.safe_load(invoke("explain", "pod", "web", "--show", "remote").stdout)
    assert (made["kind"], made["metadata"]["namespace"]) == ("Pod", "default-h")
    lookup.facts.chosen = None
    done = invoke("explain", "pod", "web", "--show", "remote")
    assert (done.exit_code, done.stdout) == (1, "")


def test_options_become_settings(invoke: Invoke, lookup: PodLookupCalls) -> None:
    remote = ("--kubeconfig", "remote.yaml", "--context", "r")
    home = ("--home-kubeconfig", "home.yaml", "--home-context", "h")
    assert invoke("explain", "pod", "shop/web", "--node", "b", *remote, *home).exit_code == 0
    assert invoke("explain", "pod", "web", "-n", "blog").exit_code == 0
    assert invoke("explain", "pod", "web").exit_code == 0
    assert lookup.settings == [
        ExplainSettings(
            KubeconfigRef(Path("home.yaml"), "h"),
            KubeconfigRef(Path("remote.yaml"), "r"),
            "shop",
            "web",
            node="b",
        ),
        ExplainSettings(KubeconfigRef(), None, "blog", "web"),
        ExplainSettings(KubeconfigRef(), None, "", "web"),
    ]


def test_file_with_a_template_after_other_objects_is_explained(
    invoke: Invoke, lookup: PodLookupCalls, tmp_path: Path
) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": objects.pod("x")["spec"]}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"template": template},
    }
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([{"kind": "Service"}, deployment]))
    assert invoke("explain", "pod", "-f", str(file)).exit_code == 0
    (settings,) = lookup.settings
    assert settings.manifest == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "web-", "labels": {"a": "b"}, "namespace": "shop"},
        "spec": template["spec"],
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("kind: Service", "contains no pod and no pod template, but Service"),
        ("", "but nothing"),
        ("a: [", "the YAML is invalid"),
        ("a: !!bool b", "the YAML is invalid"),
        (2000 * "[", "the YAML is invalid"),
        ("a: &a [b]\nc: &c [*a, *a, *c]", "values"),
    ],
    ids=["absent", "Service", "empty", "broken", "tag", "deep", "endless"],
)
def test_file_without_a_pod_is_rejected(
    invoke: Invoke, lookup: PodLookupCalls, tmp_path: Path, text: str | None, words: str
) -> None:
    file = tmp_path / "file.yaml"
    if text is not None:
        file.write_text(text)
    done = invoke("explain", "pod", "-f", str(file))
    assert done.exit_code == 2
    assert words in done.stderr
    assert lookup.settings == []


def test_empty_path_is_rejected(invoke: Invoke, lookup: PodLookupCalls) -> None:
    done = invoke("explain", "-f", "")
    assert (done.exit_code, lookup.settings) == (2, [])
    assert done.stderr.startswith("error: --file: the path is empty, or the current directory; ")


def _pod(spec: str, meta: str = "name: a") -> str:
    return f"{{kind: Pod, metadata: {{{meta}}}, spec: {{containers: [{{name: c}}], {spec}}}}}"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{kind: Deployment, spec: x}", "metadata or spec"),
        ("{kind: Deployment, metadata: x, spec: {template: {spec: {}}}}", "metadata or spec"),
        ("{kind: D, spec: {template: {spec: {}, metadata: x}}}", "metadata or spec"),
        ("{kind: D, spec: {template: {spec: x}}}", "spec"),
        ("{kind: CronJob, spec: {jobTemplate: x}}", "metadata or spec"),
        ("{kind: Pod, metadata: x}", "metadata or spec"),
        ("{kind: Pod, spec: x}", "spec"),
        ("{kind: Pod, spec: {containers: x}}", "spec.containers"),
        ("{kind: Pod, spec: {containers: [null]}}", "spec.containers[0]"),
        ("{kind: Pod, spec: {containers: [{name: a, env: x}]}}", "spec.containers[0].env"),
        (_pod("volumes: [x]"), "spec.volumes[0]"),
        (_pod("nodeSelector: x"), "spec.nodeSelector"),
        (_pod("5: x"), "metadata or spec"),
        (_pod(f"terminationGracePeriodSeconds: {'9' * 400}"), "metadata or spec"),
        (_pod("", meta="name: a, namespace: 5"), "metadata.namespace"),
        (_pod("", meta=r'name: "\ud800"'), "metadata or spec"),
    ],
)
def test_wrong_part_of_a_manifest_is_named(
    invoke: Invoke, lookup: PodLookupCalls, tmp_path: Path, text: str, part: str
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    done = invoke("explain", "-f", str(file))
    assert (done.exit_code, lookup.settings) == (2, [])
    assert done.stderr.startswith(f"error: {file}: {part}: ")


@pytest.mark.parametrize("namespace", ["null", '""'])
def test_null_and_an_empty_namespace_are_absent_fields(
    invoke: Invoke, lookup: PodLookupCalls, tmp_path: Path, namespace: str
) -> None:
    file = tmp_path / "file.yaml"
    meta = f"name: a, namespace: {namespace}"
    file.write_text(_pod("volumes: null, nodeName: null", meta=meta))
    assert invoke("explain", "-f", str(file)).exit_code == 0
    manifest = lookup.settings[0].manifest
    assert manifest == {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c"}]},
    }


def test_golden_pods_are_valid_manifests(
    invoke: Invoke, lookup: PodLookupCalls, tmp_path: Path
) -> None:
    file = tmp_path / "file.yaml"
    cases = sorted(GOLDEN.glob("pod-*.yaml"))
    for case in cases:
        pod = yaml.safe_load(case.read_text())["home"]
        file.write_text(yaml.safe_dump(pod))
        assert invoke("explain", "-f", str(file)).exit_code == 0, case
    assert len(lookup.settings) == len(cases) > 0


@pytest.mark.parametrize(
    "args", [(), ("a/b", "-f", "x"), ("a/b", "--context", "c"), ("a/b", "--node", "Not Good")]
)
def test_conflicting_options_are_rejected(
    invoke: Invoke, lookup: PodLookupCalls, args: tuple[str, ...]
) -> None:
    assert invoke("explain", "pod", *args).exit_code == 2
    assert lookup.settings == []


@pytest.mark.parametrize(
    ("words", "explained"),
    [
        ("pod/web", ("Pod", "", "web")),
        ("pod shop/web", ("Pod", "shop", "web")),
        ("po web", ("Pod", "", "web")),
        ("deployment/web -n shop", ("Deployment", "shop", "web")),
        ("deploy web", ("Deployment", "", "web")),
    ],
)
def test_target_is_type_and_name_in_both_forms(
    invoke: Invoke, lookup: PodLookupCalls, words: str, explained: tuple[str, str, str]
) -> None:
    assert invoke("explain", *words.split()).exit_code == 0
    (settings,) = lookup.settings
    assert (settings.kind, settings.namespace, settings.name) == explained


@pytest.mark.parametrize("words", ["pvc/data -n shop", "persistentvolumeclaim shop/data"])
def test_claim_is_explained_by_its_own_report(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    settings: list[ExplainSettings] = []

    async def look_up_claim(given: ExplainSettings) -> ClaimFacts:
        settings.append(given)
        meta = {"name": "data", "namespace": "shop", "uid": "u"}
        return ClaimFacts(ClaimObjects({"metadata": meta}, None, None))

    monkeypatch.setattr(claim_lookup, "look_up_claim", look_up_claim)
    done = invoke("explain", *words.split())
    assert done.exit_code == 0
    assert "PersistentVolumeClaim shop/data: home has no virtual node" in done.stdout
    assert (settings[0].namespace, settings[0].name) == ("shop", "data")
    found = json.loads(invoke("explain", *words.split(), "-o", "json").stdout)
    assert found["state"] == "NoNode"
    assert invoke("explain", *words.split(), "--show", "remote").exit_code == 2


@pytest.mark.parametrize("words", ["service/web", "web", "pod/", "pod a b", "pod/a b", ""])
def test_unknown_target_is_rejected(invoke: Invoke, lookup: PodLookupCalls, words: str) -> None:
    done = invoke("explain", *words.split())
    assert done.exit_code == 2
    assert "name one pod/NAME, deployment/NAME or pvc/NAME, or a file with -f" in done.stderr
    assert lookup.settings == []
