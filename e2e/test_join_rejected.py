"""A join that is rejected after its caches were filled: output for the user."""

from __future__ import annotations

from e2e import bridge_process
from e2e.conftest import Bridged
from e2e.workload_manifests import web


def test_join_under_another_home_name_ends_with_one_error(
    bridged: Bridged,
) -> None:
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    assert bridged.bridge.stop() == 0
    for _ in range(5):  # The defect depended on timing.
        refused = bridge_process.run(
            *("join", "--kubeconfig", bridged.bridge.remote.kubeconfig, "--name", bridged.node),
            *("--home-name", "other", "--port", "0"),
            home=bridged.bridge.home,
        )
        assert refused.returncode == 1
        *steps, error = refused.stderr.splitlines()
        assert "join with the previous ones, or remove the pods first" in error
        assert [line for line in steps if not line.startswith(("✓ ", "! ", "… "))] == []
