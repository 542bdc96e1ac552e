"""Which options of `bridge join` were given, and those that an installed bridge is started with.

They are passed on as they were written, so that an option of `join` that comes in time is passed on
without a word about it here.
"""

from __future__ import annotations

from collections.abc import Iterator

import typer

#: Of use for an installation alone.
FOR_INSTALL = (
    *("dry_run", "image", "namespace", "replicas", "bind", "all_namespaces"),
    *("offload_webhook", "relay_from"),
    "timeout",
)
#: What an installation decides by itself.
_DECIDED = frozenset(
    {
        *("kubeconfig", "context", "home_kubeconfig", "home_context", "name", "port"),
        *("network", "service_accounts", "serving_certificate"),
        *("in_cluster", *FOR_INSTALL),
    }
)
#: What means this machine, or what the installation gives every pod of its own.
REFUSED = {
    "address": "the address is that of each pod",
    "relay_address": "the address is that of each pod",
    "relay_cidr": "home's machines cannot route a range to pods, which have an address alone and "
    "may be anywhere; run the bridge on a machine, or in pods with hostNetwork of your own making",
    "cert_dir": "each pod keeps its own certificate",
    "tls_cert_file": "it is a file of this machine",
    "tls_private_key_file": "it is a file of this machine",
    "health_port": "the pods have one",
}
#: Names of the sources of a value that somebody wrote.
_GIVEN = ("COMMANDLINE", "ENVIRONMENT")


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether somebody wrote it."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name in _GIVEN


def flag(name: str) -> str:
    """The option of this name."""
    return "--" + name.replace("_", "-")


def passed_on(ctx: typer.Context) -> dict[str, list[str]]:
    """Name of each option that was given and is not decided here → how it is written."""
    return {
        parameter.name: list(_written(max(parameter.opts, key=len), ctx.params[parameter.name]))
        for parameter in ctx.command.params
        if parameter.name and parameter.name not in _DECIDED and is_given(ctx, parameter.name)
    }


def _written(option: str, value: object) -> Iterator[str]:
    if isinstance(value, bool):
        if value:
            yield option
    elif isinstance(value, (list, tuple)):
        yield from (f"{option}={item}" for item in value)
    else:
        yield f"{option}={value}"
