"""`bridge crds`."""

from __future__ import annotations


def crds() -> None:
    """Print the CustomResourceDefinitions of the bridge, as YAML for kubectl apply.

    Remotes are joins as objects of home, served by bridge run --remotes.
    """
    import yaml

    from bridge.cli.custom_resources import definitions

    print(yaml.safe_dump_all(definitions(), sort_keys=False, width=1000), end="")
