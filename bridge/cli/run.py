"""`bridge run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with the joins (docs/reference/config-file.md).",
            exists=False,
            show_default=False,
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the file's JSON Schema, and do nothing.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the file, and do nothing.")] = False,
) -> None:
    """Join one remote cluster or several, as a file says, in one process.

    Each is a virtual node of its own, as by bridge join, with options of the same names. One that
    fails is begun again, and the others go on. Runs in the foreground until Ctrl-C.
    """
    from bridge.cli.runner import fail, step

    if schema:
        import json

        from bridge.cli.config_file import schema as described

        print(json.dumps(described(), indent=2))
        return
    if config is None:
        raise fail("give --config FILE; bridge run --schema prints what it may hold", code=2)
    from bridge.base.settings import SettingsError
    from bridge.cli.config_file import read
    from bridge.cli.process_handover import Asked, begin
    from bridge.cli.shared_options import check_traces

    try:
        parts, shown = read(config)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    check_traces(shown.traces or None)
    if check:
        joins = "1 join" if len(parts) == 1 else f"{len(parts)} joins"
        step(f"{config}: {joins}: {', '.join(part.label for part in parts)}")
        return
    begin(Asked(parts, shown))
