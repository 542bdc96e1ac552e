"""`bridge placement`: options and output."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.bridge.cli.conftest import Invoke


def test_rendered_objects_install_placement(invoke: Invoke) -> None:
    done = invoke("placement", "render", "--image", "example/bridge:1")
    assert done.exit_code == 0
    kinds = [it["kind"] for it in yaml.safe_load_all(done.stdout)]
    assert kinds[0] == "CustomResourceDefinition"
    assert {"Deployment", "ServiceAccount", "MutatingAdmissionPolicy"} <= {*kinds}
    assert "Secret" not in kinds


def test_parts_can_be_omitted(invoke: Invoke) -> None:
    done = invoke("placement", "render", "--admission", "none")
    kinds = {it["kind"] for it in yaml.safe_load_all(done.stdout)}
    assert not kinds & {"Deployment", "MutatingAdmissionPolicy"}


def test_release_is_granted_only_on_request(invoke: Invoke) -> None:
    without = invoke("placement", "render").stdout
    granted = invoke("placement", "render", "--release-by", "infra/bridge").stdout
    assert "infra:bridge:release" in granted
    assert ":release" not in without


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("kind: Pod", "contains no PlacementPolicy"),
        ("kind: PlacementPolicy\nmetadata: {name: a}\nspec: {}", "spec.tiers: at least one tier"),
        ("{", "the YAML is invalid"),
    ],
)
def test_invalid_policy_file_is_rejected(
    invoke: Invoke, tmp_path: Path, policy: str, text: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(policy)
    pod = tmp_path / "pod.yaml"
    pod.write_text("kind: Pod\nmetadata: {name: a}")
    done = invoke("placement", "simulate", "-f", str(pod), "--policy", str(file))
    assert done.exit_code == 2
    assert text in done.stderr
