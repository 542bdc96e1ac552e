"""`bridge dashboard-server`: its options."""

from __future__ import annotations

import pytest
import yaml

from tests.bridge.cli.conftest import Invoke


def test_rendered_objects_are_yaml_for_kubectl(invoke: Invoke) -> None:
    done = invoke("dashboard-server", "render", "--image", "image:1", "-n", "seen")
    assert done.exit_code == 0
    kinds = [it["kind"] for it in yaml.safe_load_all(done.stdout)]
    assert kinds[0] == "Namespace", "the others are in it"
    assert kinds[-1] == "Deployment"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--service", "dashboard"), "use NAMESPACE/NAME"),
        (("run", "--service", "a/b/c"), "use NAMESPACE/NAME"),
        (("run", "--service", "a/b", "--tls-cert-file", "x"), "require each other"),
        (("render", "--image", "image:1", "--node", "No/Node"), "--node"),
        (("render", "--image", "image:1", "--tls-secret", "a b"), "--tls-secret"),
        (("render", "--image", "image:1", "--allow-from", "a,b"), "a,b"),
    ],
)
def test_invalid_option_is_rejected(invoke: Invoke, arguments: tuple[str, ...], words: str) -> None:
    done = invoke("dashboard-server", *arguments)
    assert (done.exit_code, words in done.stderr) == (2, True), done.stderr
    assert done.stdout == ""
