"""Writes the results of all golden files again, for review."""

from __future__ import annotations

import yaml

from tests.translators.golden import cases
from translators.object_accessors import Object


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, because results share parts with their inputs."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def main() -> None:
    """Writes all files."""
    for case in cases():
        content: Object = {**case.content, **case.results()}
        text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=96, allow_unicode=True)
        case.path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
