"""`bridge config validate` and `bridge config schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def validate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Configuration file of bridge run; - reads standard input.",
            show_default=False,
        ),
    ],
) -> None:
    """Validate a configuration file of bridge run, without contacting a cluster.

    Prints the joins of the file. Exit code 2 if the file is invalid.
    """
    from bridge.base.join_settings import SettingsError
    from bridge.cli.options.common_options import check_traces
    from bridge.cli.run_config_file import read
    from bridge.cli.run_until_signal import fail, report_line

    try:
        parts, logs = read(file)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    check_traces(logs.traces or None)
    joins = "1 join" if len(parts) == 1 else f"{len(parts)} joins"
    report_line(f"{file}: {joins}: {', '.join(part.label for part in parts)}")


def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors and linters."""
    import json

    from bridge.cli.run_config_file import schema as file_schema

    print(json.dumps(file_schema(), indent=2))
