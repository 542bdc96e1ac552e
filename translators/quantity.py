"""Quantities as Kubernetes parses and prints them (apimachinery's ``resource.Quantity``).

Arithmetic is exact, on `Fraction`. Printing is canonical: no fraction, the largest suffix that
allows it, in the family of suffixes of the operands (``Ki`` or ``k``).
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_PATTERN = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?\d{1,3}))",
    re.ASCII,
)


class QuantityError(ValueError):
    """Not a quantity as Kubernetes writes them."""


def parse(text: str | float) -> Fraction:
    """``"1500m"`` → 3/2, ``"2Gi"`` → 2147483648, ``"1e3"`` → 1000. Raises QuantityError."""
    match = _PATTERN.fullmatch(str(text))
    if match is None:
        raise QuantityError(f"{text!r} is not a quantity such as 500m, 2 or 1.5Gi")
    number = Fraction(match["number"])
    if match["exponent"] is not None:
        return number * Fraction(10) ** int(match["exponent"])
    suffix = match["suffix"] or ""
    return number * (_BINARY[suffix] if suffix in _BINARY else _DECIMAL[suffix])


def is_binary(text: str | float) -> bool:
    """Whether the quantity is written with a binary suffix."""
    return str(text).endswith("i")


def render(value: Fraction, *, binary: bool = False) -> str:
    """The canonical form; what is finer than a nano is rounded away from zero, as Kubernetes
    does: who asked for something does not get nothing."""
    if value == 0:
        return "0"
    if binary and value.denominator == 1 and abs(value) >= 2**10:
        suffixes: dict[str, Fraction] = {k: Fraction(v) for k, v in _BINARY.items()} | {
            "": Fraction(1)
        }
    else:
        suffixes = _DECIMAL
        nanos = ceil(abs(value) * 10**9)
        value = Fraction(nanos if value > 0 else -nanos, 10**9)
    for suffix, unit in sorted(suffixes.items(), key=lambda item: -item[1]):
        scaled = value / unit
        if scaled.denominator == 1:
            return f"{scaled.numerator}{suffix}"
    raise AssertionError(f"{value} is rounded to nanos, so a suffix fits")


def total(quantities: list[str]) -> str:
    """The exact sum, with binary suffixes where one of them has one, so that the order of the
    operands does not show. The sum of none is ``0``."""
    value = sum((parse(quantity) for quantity in quantities), Fraction(0))
    return render(value, binary=any(is_binary(quantity) for quantity in quantities))
