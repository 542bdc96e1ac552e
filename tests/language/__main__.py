"""Checks prose and names against `words.yaml`; with the file of a commit message as argument, its
subject.

Read are the comments, docstrings and other strings of Python files, their identifiers, and the
lines of Markdown files outside of code blocks. A finding is printed as ``path:line: text: write
TERM``. Exit codes: 0 nothing found, 1 findings.

A line that has to use an expression ends with ``lint: language`` (in a comment): a quotation of
another program, or an identifier of the Kubernetes API.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
#: Folders and files that are checked; generated pages follow from the code.
CHECKED = (
    "bridge",
    "sync",
    "translators",
    "docs",
    "tests",
    "e2e",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "THREAT_MODEL.md",
)
#: Marks a line that may use the expression.
ALLOWED = "lint: language"
#: The form of a commit's subject; git itself writes those of merges and reverts.
SUBJECT = re.compile(r"^[a-z][a-z0-9 ,/_-]*: \S.*$|^(Merge|Revert) ")
LONGEST_SUBJECT = 72


@dataclass(frozen=True, slots=True)
class Rule:
    """One expression, and the term to write instead."""

    find: re.Pattern[str]
    write: str
    names: bool
    """Applies to identifiers, not to prose."""


def rules() -> list[Rule]:
    """The word list. Raises KeyError where an entry is incomplete."""
    entries = yaml.safe_load((Path(__file__).parent / "words.yaml").read_text(encoding="utf-8"))
    return [
        Rule(re.compile(it["find"], re.IGNORECASE), it["write"], it.get("where") == "names")
        for it in entries
    ]


def findings(path: Path, checks: list[Rule]) -> Iterator[str]:
    """One line for each use of an expression in ``path``."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    read = _of_markdown(lines) if path.suffix == ".md" else _of_python(text)
    for number, prose, is_name in read:
        if ALLOWED in lines[number - 1]:
            continue
        for rule in checks:
            if rule.names == is_name and (match := rule.find.search(prose)):
                where = f"{path.relative_to(ROOT)}:{number}"
                yield f"{where}: {match.group().strip()[:40]!r}: write {rule.write}"


def _of_markdown(lines: list[str]) -> Iterator[tuple[int, str, bool]]:
    is_code = False
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`", "``", line), False


def _of_python(text: str) -> Iterator[tuple[int, str, bool]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: "), False
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for offset, line in enumerate(node.value.splitlines()):
                yield min(node.lineno + offset, node.end_lineno or node.lineno), line.strip(), False
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name, True
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id, True


def wrong_subject(message: str) -> str:
    """Returns the error of a commit message's subject; empty for a correct one."""
    subject = message.partition("\n")[0]
    if SUBJECT.match(subject) and len(subject) <= LONGEST_SUBJECT:
        return ""
    return f"{subject!r}: write `area: imperative summary`, at most {LONGEST_SUBJECT} characters"


def main() -> int:
    """Prints all findings."""
    checks = rules()
    files = [
        path
        for name in CHECKED
        for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")))
        if path.suffix in (".py", ".md")
    ]
    found = [line for path in files for line in findings(path, checks)]
    print(*found, sep="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    # pre-commit names the file of the message.
    sys.exit(wrong_subject(Path(sys.argv[1]).read_text()) if sys.argv[1:] else main())
