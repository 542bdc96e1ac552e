"""Secrets in any field do not appear in a bug report; diagnostic data does."""

from __future__ import annotations

import base64
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.bug_report import collector
from bridge.bug_report.collector import BugReportSettings, collect
from bridge.bug_report.redaction import MAX_LEARNED, WITHHELD, Redactor
from bridge.node.join_record import ANNOTATION_OPTIONS
from bridge.node.node_object import ANNOTATION_KUBECONFIG
from sync.kube.api_resources import NODES, PODS, Object
from tests.bridge.running_join import running_join
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE, EngineHarness

pytestmark = pytest.mark.usefixtures("soon")

ENCODED = base64.b64encode(CANARY.encode()).decode()


def planted(harness: EngineHarness) -> None:
    """Objects with the secret wherever a user can put it or a cluster can quote it."""
    harness.home.put(secret("key", data={"password": ENCODED}))
    harness.home.put(config_map("conf", data={"password": CANARY}))
    container: Object = {
        "name": "main",
        "image": "busybox:1",
        "command": ["sh", "-c", f"login {CANARY}"],
        "args": [CANARY],
        "env": [{"name": "PASSWORD", "value": CANARY}],
        "envFrom": [{"secretRef": {"name": "key"}}, {"configMapRef": {"name": "conf"}}],
        "livenessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a", "value": CANARY}]}},
    }
    harness.pod("a", containers=[container], labels={"app": CANARY})
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": f'{{"a":"{CANARY}"}}'}
    harness.home.update(PODS, "a", {"metadata": {"annotations": annotations}}, "default")
    harness.home.update(NODES, NODE, {"metadata": {"annotations": {"note": CANARY}}})


def quoted(harness: EngineHarness) -> None:
    """Statuses and Events that quote it."""
    message = f'exec: "login {CANARY}": not found'
    ended = {"exitCode": 1, "reason": "Error", "message": f"my log: {CANARY}"}
    status = {
        "phase": "Running",
        "message": message,
        "containerStatuses": [
            {
                "name": "main",
                "restartCount": 3,
                "state": {"waiting": {"reason": "RunContainerError", "message": message}},
                "lastState": {"terminated": ended},
            }
        ],
    }
    for api, where in ((harness.home, "default"), (harness.remote, REMOTE_NAMESPACE)):
        api.update(PODS, "a", {"status": status}, where)
    harness.home.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "a.1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a"},
            "reason": "Failed",
            "message": f"{message}; {ENCODED}",
        }
    )


def contents(path: Path) -> dict[str, str]:
    """The text of each file, by its name."""
    found = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode()
    return found


async def report(two: Clusters, path: Path, *, addresses: bool = False) -> dict[str, str]:
    """A report of the node, read back from its archive."""
    settings = BugReportSettings(two.settings.home, NODE, addresses=addresses)
    notified: list[str] = []
    listed = collector.write_archive(path, await collect(settings, notify=notified.append))
    files = contents(path)
    assert set(files) == {"CONTENTS.txt", *(str(it["file"]) for it in listed)}
    assert CANARY not in str(notified) + str(listed)
    return files


async def test_secrets_in_all_objects_are_not_in_the_report(two: Clusters, tmp_path: Path) -> None:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text="cluster_bridge_leader 1\n")

    two.home.route("GET", f"*/nodes/{NODE}/proxy/metrics", metrics)
    harness = EngineHarness(two.home, two.remote)
    async with running_join(two):
        planted(harness)
        await two.remote.until(lambda: harness.remote_pod("a"))
        harness.report_running("a")
        quoted(harness)
        files = await report(two, tmp_path / "report.tar.gz")
    for name, text in files.items():
        assert CANARY not in text, name
        assert ENCODED not in text, name
        # Addresses of the API servers are not included by default.
        assert "http://127.0.0.1" not in text, name
    # Diagnostic data is included.
    [pod] = parsed(files, f"nodes/{NODE}/pods.json")
    [its] = pod["status"]["containerStatuses"]
    assert its["state"]["waiting"]["reason"] == "RunContainerError"
    assert its["state"]["waiting"]["message"] == f'exec: "{WITHHELD}": not found'
    assert its["lastState"]["terminated"] == {"exitCode": 1, "reason": "Error", "message": WITHHELD}
    assert pod["metadata"]["labels"] == {"app": WITHHELD}
    [there] = parsed(files, f"nodes/{NODE}/remote-pods.json")
    assert there["metadata"]["labels"]["cluster-bridge.io/node"] == NODE
    kinds = {it["kind"] for it in parsed(files, f"nodes/{NODE}/remote-objects.json")}
    assert kinds == {"Secret", "ConfigMap", "Namespace"}
    assert any(it["reason"] == "Failed" for it in parsed(files, f"nodes/{NODE}/events.json"))
    assert {it["id"] for it in parsed(files, "check.json")["findings"]} > {"BRG302", "BRG506"}
    assert parsed(files, "versions.json")["nodes"][0]["name"] == NODE
    assert "cluster_bridge_leader" in files[f"nodes/{NODE}/metrics.txt"]
    assert len(parsed(files, f"nodes/{NODE}/leases.json")) == 2
    assert two.remote.url not in str(files)


def parsed(files: dict[str, str], name: str) -> Any:
    """A file of JSON."""
    return json.loads(files[name])


async def test_addresses_are_included_on_request(two: Clusters, tmp_path: Path) -> None:
    async with running_join(two):
        files = await report(two, tmp_path / "report.tar.gz", addresses=True)
    assert two.home.url in files["check.json"]
    # The fake cluster does not proxy to kubelets.
    assert "/metrics of virtual" in files["problems.json"]


async def test_unreachable_home_still_produces_a_report(two: Clusters, tmp_path: Path) -> None:
    await two.home.stop()
    settings = BugReportSettings(two.settings.home)
    found = await collect(settings, notify=lambda _: None)
    path = tmp_path / "report.tar.gz"
    collector.write_archive(path, found)
    files = contents(path)
    assert set(files) == {"CONTENTS.txt", "check.json", "problems.json", "versions.json"}
    [problem] = parsed(files, "problems.json")
    assert problem.startswith("connection refused by <home-api-server>")
    assert parsed(files, "versions.json")["home"]["problem"] == problem
    assert "127.0.0.1" not in str(files)


async def test_addresses_of_unreachable_remotes_are_not_included(
    two: Clusters, tmp_path: Path
) -> None:
    """Neither that of the node's remote, nor that of another node's."""
    async with running_join(two):
        pass
    path = two.settings.remote.path
    assert path is not None
    config, node = path.read_text(), two.home.get(NODES, NODE)
    path.write_text(config.replace("127.0.0.1", "127.0.0.9"))
    (tmp_path / "other.yaml").write_text(config.replace("127.0.0.1", "127.0.0.8"))
    annotations = {ANNOTATION_KUBECONFIG: str(tmp_path / "other.yaml")}
    other = {"name": "other", "labels": node["metadata"]["labels"], "annotations": annotations}
    two.home.put({**node, "metadata": other})
    files = await report(two, tmp_path / "report.tar.gz")
    assert "refused by <remote-api-server>" in files["problems.json"]
    assert "refused by <remote-api-server>" in files["versions.json"]
    assert "127.0.0." not in str(files)


async def test_user_without_a_home_directory_gets_a_report(
    two: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # without an entry in passwd
    assert "check.json" in await report(two, tmp_path / "report.tar.gz")


async def test_archive_is_private_and_never_overwrites(two: Clusters, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    found = await collect(BugReportSettings(two.settings.home), notify=lambda _: None)
    collector.write_archive(path, found)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(PreflightError, match="exists; name another file with -f"):
        collector.write_archive(path, found)
    with pytest.raises(PreflightError, match="cannot be written"):
        collector.write_archive(tmp_path / "no" / "report.tar.gz", found)


@pytest.mark.parametrize(
    ("side", "method", "path"),
    [
        ("home", "GET", "*/clusterrolebindings"),
        ("home", "POST", "*/selfsubjectaccessreviews"),
        ("remote", "POST", "*/selfsubjectaccessreviews"),
    ],
)
async def test_request_that_fails_hides_no_other_part(
    two: Clusters, tmp_path: Path, side: str, method: str, path: str
) -> None:
    async with running_join(two):
        pass
    if side == "home":
        annotations = {ANNOTATION_KUBECONFIG: "/gone"}
    else:
        annotations = {ANNOTATION_OPTIONS: json.dumps({"remoteNamespaces": ["a"]})}
    two.home.update(NODES, NODE, {"metadata": {"annotations": annotations}})
    api = two.home if side == "home" else two.remote
    api.fail(Fault(method, path, code=500, times=None))
    files = await report(two, tmp_path / "report.tar.gz")
    assert f"nodes/{NODE}/pods.json" in files
    assert ": 500: " in files["problems.json"]
    assert "texts of the clusters are withheld" in files["problems.json"]


def test_too_many_secrets_redact_all_free_text() -> None:
    redactor = Redactor()
    redactor.is_complete = True
    for number in range(MAX_LEARNED + 1):
        redactor.learn(f"secret-{number}")
    assert redactor.redact("anything") == WITHHELD
    assert redactor.redact(None) == ""


@pytest.mark.parametrize(
    "text",
    [
        "USER=me\nPASSWORD=%s\n",
        '{"auths":{"registry.example":{"username":"me","password":"%s"}}}',
        "postgres://me:%s@db.example:5432/shop",
        "Server=db;Password=%s;Port=1",
    ],
)
def test_part_of_a_value_is_redacted(text: str) -> None:
    value = text % PASSWORD
    data = {"all": base64.b64encode(value.encode()).decode()}
    environment: Object = {"spec": {"containers": [{"env": [{"name": "A", "value": value}]}]}}
    arguments: Object = {"spec": {"containers": [{"args": [f"--config={value}"]}]}}
    from_secret, *from_pods = Redactor(), Redactor(), Redactor()
    from_secret.learn_data({"kind": "Secret", "data": data})
    for redactor, pod in zip(from_pods, (environment, arguments), strict=True):
        redactor.learn_pod(pod)
    for redactor in (from_secret, *from_pods):
        redactor.is_complete = True
        assert redactor.redact(f"login: {PASSWORD}: denied") == f"login: {WITHHELD}: denied"


@pytest.mark.parametrize("length", [len("denied: ") + 8, 100, 600, 100_000])
def test_value_that_the_end_of_a_message_cuts_is_redacted(length: int) -> None:
    """Errors, conditions and Events have a longest message, and so has a report."""
    value = base64.b64encode(bytes(range(256)) * 200).decode()
    redactor = Redactor()
    redactor.is_complete = True
    redactor.learn_data({"kind": "Secret", "data": {"tls.key": value}})
    assert redactor.redact(f"denied: {value}"[:length]) == f"denied: {WITHHELD}"


def test_short_words_are_not_redacted() -> None:
    redactor = Redactor()
    redactor.is_complete = True
    redactor.learn("a b true")
    redactor.learn("true")
    assert redactor.redact("it is true") == "it is true"
    assert redactor.redact("so a b true it is") == f"so {WITHHELD} it is"


#: No credential of the kubeconfigs, which are redacted on their own.
PASSWORD = "hunter2-very-secret"
PASSWORD_ENCODED = base64.b64encode(PASSWORD.encode()).decode()


def rejected(harness: EngineHarness) -> None:
    """A pod that waits, because a webhook of the remote rejects its Secret and quotes it."""
    harness.home.put(secret("key", data={"password": PASSWORD_ENCODED}))
    message = f"admission webhook denied the request: password {PASSWORD} is too weak"
    harness.remote.fail(Fault("POST", "*/secrets", code=403, message=message, times=None))
    container = {"name": "main", "image": "busybox:1", "envFrom": [{"secretRef": {"name": "key"}}]}
    harness.pod("a", containers=[container])


async def rejected_report(two: Clusters, path: Path) -> dict[str, str]:
    """A report while the webhook's message is in the pod's status, its condition and an Event."""
    harness = EngineHarness(two.home, two.remote)
    rejected(harness)
    await two.home.until(lambda: PASSWORD in str(harness.status()))
    return await report(two, path)


async def test_rejected_secret_is_learned_from_home(two: Clusters, tmp_path: Path) -> None:
    async with running_join(two):
        files = await rejected_report(two, tmp_path / "report.tar.gz")
    assert PASSWORD not in str(files)
    [pod] = parsed(files, f"nodes/{NODE}/pods.json")
    assert pod["status"]["message"].endswith(f"password {WITHHELD} is too weak")


@pytest.mark.parametrize("code", [403, 500])
async def test_texts_are_withheld_if_a_secret_cannot_be_read(
    two: Clusters, tmp_path: Path, code: int
) -> None:
    async with running_join(two):
        harness = EngineHarness(two.home, two.remote)
        rejected(harness)
        await two.home.until(lambda: PASSWORD in str(harness.status()))
        two.home.fail(
            Fault("GET", "*/secrets/key", code=code, message=f"is it {PASSWORD}?", times=None)
        )
        files = await report(two, tmp_path / "report.tar.gz")
    assert PASSWORD not in str(files)
    [pod] = parsed(files, f"nodes/{NODE}/pods.json")
    assert pod["status"]["message"] == WITHHELD
    assert pod["status"]["reason"] == "RemoteForbidden"
    assert "texts of the clusters are withheld" in files["problems.json"]
    assert str(code) in files["problems.json"]


async def test_texts_are_withheld_without_the_remote(two: Clusters, tmp_path: Path) -> None:
    """The values of tokens are only in the remote."""
    async with running_join(two):
        harness = EngineHarness(two.home, two.remote)
        rejected(harness)
        await two.home.until(lambda: PASSWORD in str(harness.status()))
    await two.remote.stop()
    files = await report(two, tmp_path / "report.tar.gz")
    assert PASSWORD not in str(files)
    [pod] = parsed(files, f"nodes/{NODE}/pods.json")
    assert pod["status"]["message"] == WITHHELD


async def test_secrets_beyond_the_longest_list_are_learned(
    two: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remote copy can have a value that home has replaced."""
    monkeypatch.setattr(collector, "MAX_OBJECTS", 3)
    harness = EngineHarness(two.home, two.remote)
    async with running_join(two):
        names = [f"conf-{number}" for number in range(8)]
        for name in names:
            two.home.put(config_map(name))
        two.home.put(secret("key", data={"password": PASSWORD_ENCODED}))
        sources: list[Object] = [{"configMapRef": {"name": name}} for name in names]
        sources.append({"secretRef": {"name": "key"}})
        container = {"name": "main", "image": "busybox:1", "envFrom": sources}
        harness.pod("a", containers=[container])
        await two.remote.until(lambda: harness.remote_pod("a"))
        harness.report_running("a")
    two.home.put(secret("key", data={"password": "b3RoZXI="}))
    status = {"phase": "Running", "message": f"{PASSWORD} not found"}
    two.home.update(PODS, "a", {"status": status}, "default")
    files = await report(two, tmp_path / "report.tar.gz")
    assert len(parsed(files, f"nodes/{NODE}/remote-objects.json")) <= 3 + 1
    assert PASSWORD not in str(files)
    assert "not found" in files[f"nodes/{NODE}/pods.json"], "not withheld as a whole"


async def test_texts_are_withheld_for_too_many_references(
    two: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "MAX_REFERENCES", 0)
    async with running_join(two):
        files = await rejected_report(two, tmp_path / "report.tar.gz")
    [pod] = parsed(files, f"nodes/{NODE}/pods.json")
    assert pod["status"]["message"] == WITHHELD


def test_token_is_redacted_although_it_was_replaced() -> None:
    redactor = Redactor()
    redactor.is_complete = True
    token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
    assert redactor.redact(f"token {token} expired") == f"token {WITHHELD} expired"
