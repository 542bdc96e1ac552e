"""`bridge render`: with the options of `bridge join`, but those of doing it."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import typer

from bridge.cli.join import PRINTS, join

#: Options of `join` that printing has not got.
_LEFT_OUT = ("in_cluster", "dry_run", "timeout")


@functools.wraps(join, assigned=("__annotations__",))
def render(ctx: typer.Context, **options: Any) -> None:
    """Print what bridge join --in-cluster applies, as YAML for kubectl apply.

    The Secret in it holds the remote's kubeconfig. Nothing is asked of either cluster.
    """
    ctx.meta[PRINTS] = True
    join(ctx, **options, in_cluster=True)


# What typer reads the options from.
_of_join = inspect.signature(join, eval_str=True)
_own = [it for name, it in _of_join.parameters.items() if name not in _LEFT_OUT]
render.__signature__ = _of_join.replace(parameters=_own)  # type: ignore[attr-defined]
