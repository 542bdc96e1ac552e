"""The kustomize base: the objects rendered for a node `remote`, without its credential. And the
component that adds its webhook.

python -m tests.bridge.install.kustomize_base        writes both files
"""

from __future__ import annotations

from pathlib import Path

import yaml

from bridge.base.version import version
from bridge.install import installation_manifests
from bridge.install.installation import Installation
from bridge.rbac.rbac_manifests import HomePermissions
from translators.object_accessors import Object

MANIFESTS = Path(__file__).parents[3] / "manifests"
FOLDER = MANIFESTS / "base"
FILE = FOLDER / "bridge.yaml"
COMPONENT = MANIFESTS / "offload-webhook"
WEBHOOK_FILE = COMPONENT / "webhook.yaml"
NODE = "remote"
_WRITTEN = "# Written by python -m tests.bridge.install.kustomize_base.\n"
_HEAD = (
    "# As `bridge render --name remote` prints it, without the kubeconfig; a test compares.\n"
    + _WRITTEN
)
_WEBHOOK_HEAD = (
    "# What `bridge render --name remote --offload-webhook` prints beside that; a test compares.\n"
    + _WRITTEN
)


def without_credential(made: list[Object]) -> list[Object]:
    """The objects without anything derived from a kubeconfig: kustomize names its Secrets by their
    content, which rolls the pods as the annotation does."""
    kept = [it for it in made if it["kind"] != "Secret" or "data" not in it]
    for it in kept:
        if it["kind"] == "Deployment":
            del it["spec"]["template"]["metadata"]["annotations"]
    return kept


def base() -> list[Object]:
    """The objects of the base."""
    wanted = Installation(NODE, f"cluster-bridge:{version()}", HomePermissions(nodes=[NODE]))
    return without_credential(installation_manifests.render(wanted, ""))


def component() -> list[Object]:
    """The objects of the component."""
    wanted = Installation(NODE, f"cluster-bridge:{version()}", HomePermissions(nodes=[NODE]))
    return installation_manifests.render_webhook(wanted)


class Plain(yaml.SafeDumper):
    """Dumps without anchors, so that every object is complete."""

    def ignore_aliases(self, _: object) -> bool:
        return True


if __name__ == "__main__":
    for file, head, made in ((FILE, _HEAD, base()), (WEBHOOK_FILE, _WEBHOOK_HEAD, component())):
        text = yaml.dump_all(made, Dumper=Plain, sort_keys=False, width=100)
        file.write_text(head + text)
