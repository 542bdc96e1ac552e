"""`bridge explain pod` on real clusters: the explanation matches what happens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from e2e import bridge_process
from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, is_ready, wait_for
from e2e.workload_manifests import config_map, pod, secret, shell

#: The Secret's content, plain and encoded.
HIDDEN = ("correct-horse", "Y29ycmVjdC1ob3JzZQ==")


def _explain(bridged: Bridged, *args: str | Path, text: bool = False) -> Json:
    """The explanation for the test's node; with ``text``, the printed one."""
    done = bridge_process.run(
        *("explain", "pod", *args, "--node", bridged.node, "-n", bridged.namespace),
        *("--kubeconfig", bridged.remote.kubeconfig),
        *(() if text else ("-o", "json")),
        home=bridged.home,
    )
    assert done.returncode == 0, done.stderr
    assert not [it for it in HIDDEN if it in done.stdout + done.stderr]
    found: Json = {"text": done.stdout} if text else json.loads(done.stdout)
    return found


def _reasons(answer: Json) -> str:
    return " ".join(it["why"] for it in answer["waiting"])


def test_explanation_of_a_pod_matches_its_remote_pod(bridged: Bridged, tmp_path: Path) -> None:
    meta = {"labels": {"app": "web", "example.com/team": "a"}}
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "a"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "key", "key": "password"}}},
        {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    web = pod(bridged.node, "web", meta, containers=[shell("main", "sleep 3600", env=env)])
    file = tmp_path / "web.yaml"
    file.write_text(web)

    before = _explain(bridged, "-f", file)
    assert before["state"] == "WouldWait", before["summary"]
    assert before["placement"]["possible"]
    assert "ConfigMap conf is missing at home" in _reasons(before)
    assert [it["path"] for it in before["differences"] if not it["rule"]] == []

    bridged.apply(config_map("conf", {"b": "1"}))
    bridged.apply(secret("key", {"password": HIDDEN[0]}))
    assert "lacks the key a" in _reasons(_explain(bridged, "-f", file))

    bridged.apply(config_map("conf", {"a": "1"}))
    bridged.apply(web)
    wait_for(
        lambda: is_ready(get_one(bridged.home, "pod", "web", namespace=bridged.namespace)),
        "the pod runs",
    )
    after = _explain(bridged, f"{bridged.namespace}/web")
    assert after["state"] == "Running", after["summary"]
    assert after["waiting"] == []
    assert after["notLookedAt"] == []
    assert {(it["kind"], it["home"], it["remote"]) for it in after["references"]} >= {
        ("ConfigMap", "found", "found"),
        ("Secret", "found", "found"),
    }

    shown = yaml.safe_load(_explain(bridged, "web", "--show", "remote", text=True)["text"])
    there = get_one(bridged.remote, "pod", "web", namespace=bridged.remote_namespace)
    assert shown["metadata"]["annotations"] == there["metadata"]["annotations"]
    assert shown["metadata"]["labels"] == there["metadata"]["labels"]
    for container, made in zip(
        shown["spec"]["containers"], there["spec"]["containers"], strict=True
    ):
        assert {key: made.get(key) for key in container} == container
    assert shown["spec"]["volumes"] == there["spec"]["volumes"]

    people = _explain(bridged, "web", text=True)["text"]
    assert people.startswith(f"pod {bridged.namespace}/web runs on node {bridged.node}")
    assert "differences:" in people


@pytest.mark.core
def test_explanation_names_why_a_pod_does_not_run(bridged: Bridged, tmp_path: Path) -> None:
    node = bridged.node
    selector = {"kubernetes.io/hostname": node, "example.com/disk": "ssd"}
    given = {
        "elsewhere": pod(node, "elsewhere", nodeSelector=selector),
        "host": pod(node, "host", hostNetwork=True),
        "huge": pod(
            node,
            "huge",
            containers=[shell("main", "sleep 1", resources={"requests": {"cpu": "4k"}})],
        ),
    }
    for name, manifest in given.items():
        (tmp_path / name).write_text(manifest)
    found = {name: _explain(bridged, "-f", tmp_path / name) for name in given}
    assert found["elsewhere"]["state"] == "NotPlaced"
    assert found["elsewhere"]["placement"]["obstacles"][0]["field"] == (
        "spec.nodeSelector[example.com/disk]"
    )
    assert [it["field"] for it in found["host"]["refusals"]] == ["spec.hostNetwork"]
    assert "spec.hostNetwork: " in found["host"]["summary"]
    assert found["huge"]["state"] == "NotPlaced"
    assert "rejected" not in found["huge"]["summary"]
    assert any("cpu" in it["field"] for it in found["huge"]["placement"]["obstacles"])

    bridged.apply(pod(node, "image", containers=[{"name": "main", "image": "none.invalid/x:1"}]))

    def pulled_in_vain() -> bool:
        answer = _explain(bridged, "image")
        return answer["state"] == "Waiting" and "ImagePull" in _reasons(answer)

    wait_for(pulled_in_vain, "the image that cannot be pulled is named")
    answer = _explain(bridged, "image")
    assert any(
        it["side"] == "remote" and "none.invalid" in it["message"] for it in answer["events"]
    )
