"""Manifests and options: the output of commands that read no cluster."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.golden.worlds import CANARY, World

#: Commands that print YAML.
_PRINTED = {
    "rbac-home": ["rbac", "home", "--name", "burst"],
    "rbac-home-namespaces": [
        *("rbac", "home", "--name", "burst", "--namespace", "shop", "--network", "relay"),
        *("--storage", "provision", "--service-accounts", "home", "--leave"),
    ],
    "rbac-home-all": ["rbac", "home", "--name", "burst", "--all-namespaces", "--no-policy"],
    "rbac-remote": ["rbac", "remote"],
    "rbac-remote-storage": ["rbac", "remote", "--storage", "provision", "--policy"],
    "rbac-remote-prepared": ["rbac", "remote", "--namespace", "tenant", "--cluster-reads"],
    "rbac-namespace": ["rbac", "namespace", "shop", "other", "--account", "bridges/one"],
    "render": ["render", "--name", "burst"],
    "render-relay": [
        *("render", "--name", "burst", "--network", "relay", "--replicas", "3"),
        *("--namespace", "bridges", "--image", "example.com/bridge:1", "--bind", "shop"),
        *("--storage", "provision", "--share", "0.5", "--labels", "pool=a"),
    ],
    "render-webhook": ["render", "--name", "burst", "--all-namespaces", "--offload-webhook"],
}
#: Commands whose options are recorded.
_COMMANDS = (
    *("join", "install", "upgrade", "leave", "uninstall", "offload", "unoffload", "status"),
    *("dashboard", "check", "explain", "version", "bug-report", "render", "prune", "webhook"),
    *("rbac home", "rbac remote", "rbac namespace"),
)
#: Runs the console script with a parser that prints its options, and parses nothing.
_DESCRIBE = """
import json, sys
import typer.core

def option(parameter):
    annotation = parameter.type_descriptor.annotation
    default = parameter.default() if callable(parameter.default) else parameter.default
    return {
        "short": list(parameter.opts[1:]),
        "negations": list(parameter.secondary_opts),
        "type": annotation.__name__ if isinstance(annotation, type) else str(annotation),
        "min": parameter.min,
        "max": parameter.max,
        "required": parameter.required,
        "multiple": parameter.multiple or parameter.nargs != 1,
        "default": default,
        "environment": parameter.envvar,
    }

def describe(command):
    inner = getattr(command, "commands", None)
    if inner is not None:
        return {name: describe(found) for name, found in inner.items()}
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    return {parameter.opts[0]: option(parameter) for parameter in shown}

def main(self, *_, **__):
    print(json.dumps(describe(self), default=lambda value: getattr(value, "value", None)))
    sys.exit(0)

typer.core.TyperGroup.__call__ = main
sys.argv = ["bridge", "status"]
"""


async def manifests(world: World) -> dict[str, Any]:
    """The printed objects, by kind and name."""
    found: dict[str, Any] = {}
    remote = kubeconfig("https://remote.example.com:6443", user={"token": CANARY})
    file = write(world.product.folder / "https.yaml", remote)
    for name, args in _PRINTED.items():
        clusters = ["--kubeconfig", str(file), *world.home_side] if args[0] == "render" else []
        done = await world.run(*args, *clusters)
        assert done.code == 0, f"{name}: {done.stderr}"
        found[name] = {_key(obj): obj for obj in yaml.safe_load_all(done.stdout) if obj}
    return world.redact(found)


async def options(world: World) -> dict[str, Any]:
    """The options of each command: names, environment variable, type, default."""
    done = await world.product.run(before=_DESCRIBE)
    assert done.code == 0, done.stderr
    root = json.loads(done.stdout)
    found = dict.fromkeys(_COMMANDS, root)
    for name in _COMMANDS:
        for part in name.split():
            found[name] = found[name][part]
    return world.redact({name: _plain(command) for name, command in found.items()})


def _plain(command: Any) -> Any:
    """The options without fields that have no value."""
    return {
        name: {
            field: value for field, value in option.items() if value not in (None, [], {}, False)
        }
        for name, option in command.items()
    }


def _key(obj: Any) -> str:
    metadata = obj["metadata"]
    place = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{obj['kind']} {place}{metadata['name']}"
