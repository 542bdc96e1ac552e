"""The kustomize base: what is rendered for a node `remote`, without its credential.

python -m tests.bridge.install.base        writes it anew
"""

from __future__ import annotations

from pathlib import Path

import yaml

from bridge.install import objects
from bridge.install.installation import Installation
from bridge.rbac import HomeRights
from bridge.version import version
from translators.types import Object

FOLDER = Path(__file__).parents[3] / "manifests/base"
FILE = FOLDER / "bridge.yaml"
NODE = "remote"
_HEAD = (
    "# As `bridge render --name remote` prints it, without the Secret; a test compares.\n"
    "# Written by python -m tests.bridge.install.base.\n"
)


def without_credential(made: list[Object]) -> list[Object]:
    """The objects that know nothing of a kubeconfig: kustomize names its Secrets by what is in
    them, which rolls the pods as well as the annotation does."""
    kept = [it for it in made if it["kind"] != "Secret"]
    for it in kept:
        if it["kind"] == "Deployment":
            del it["spec"]["template"]["metadata"]["annotations"]
    return kept


def base() -> list[Object]:
    """The base's objects."""
    wanted = Installation(NODE, f"cluster-bridge:{version()}", HomeRights(nodes=[NODE]))
    return without_credential(objects.objects(wanted, ""))


class _Plain(yaml.SafeDumper):
    """Without anchors: a reader sees each object whole."""

    def ignore_aliases(self, _: object) -> bool:
        return True


if __name__ == "__main__":
    FILE.write_text(_HEAD + yaml.dump_all(base(), Dumper=_Plain, sort_keys=False, width=100))
