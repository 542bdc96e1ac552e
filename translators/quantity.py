"""Parses and formats quantities as Kubernetes does (apimachinery's ``resource.Quantity``).

Arithmetic is exact, with `Fraction`. As ParseQuantity in k8s.io/apimachinery/pkg/api/resource does,
parsing rounds away from zero to a multiple of 1 n, so that a small request does not become zero,
and caps values with a binary suffix at 2⁶³-1. Formatting is canonical: an integer with the largest
possible suffix of the family (``Ki`` or ``k``). A formatted text can be parsed again: values that
would be too long, far beyond any amount, are formatted as the largest one (`_FORMATTED_MAX`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
#: The largest value with a binary suffix.
_BINARY_MAX = Fraction(2**63 - 1)
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
    """The text is not a valid quantity."""


#: Characters of a quantity: far more than any amount needs, and few enough to parse quickly.
_LENGTH_MAX = 64
#: The largest value that is formatted: with a sign, nine decimal places and a suffix, its text is
#: not longer than that.
_FORMATTED_MAX = Fraction(10**48)


def is_quantity(text: str | float) -> bool:
    """Whether `parse_quantity` accepts the text."""
    return len(text := str(text)) <= _LENGTH_MAX and _PATTERN.fullmatch(text) is not None


def parse_quantity(text: str | float) -> Fraction:
    """``"1500m"`` → 3/2, ``"2Gi"`` → 2147483648, ``"1e3"`` → 1000. Raises QuantityError."""
    text = str(text)[: _LENGTH_MAX + 1]
    match = _PATTERN.fullmatch(text)
    if match is None or len(text) > _LENGTH_MAX:
        raise QuantityError(f"{text!r} is not a quantity such as 500m, 2 or 1.5Gi")
    number = Fraction(match["number"])
    if match["exponent"] is not None:
        return _in_nanos(number * Fraction(10) ** int(match["exponent"]))
    suffix = match["suffix"] or ""
    if suffix not in _BINARY:
        return _in_nanos(number * _DECIMAL[suffix])
    value = _in_nanos(number * _BINARY[suffix])
    return max(-_BINARY_MAX, min(value, _BINARY_MAX))


def format_quantity(value: Fraction, *, binary: bool = False) -> str:
    """The canonical text; values finer than 1 n are rounded away from zero, and larger ones than
    `_FORMATTED_MAX` are capped."""
    if value == 0:
        return "0"
    value = max(-_FORMATTED_MAX, min(value, _FORMATTED_MAX))
    if binary and value.denominator == 1 and abs(value) >= 2**10:
        suffixes: dict[str, Fraction] = {k: Fraction(v) for k, v in _BINARY.items()} | {
            "": Fraction(1)
        }
    else:
        suffixes = _DECIMAL
        value = _in_nanos(value)
    for suffix, unit in sorted(suffixes.items(), key=lambda item: -item[1]):
        scaled = value / unit
        if scaled.denominator == 1:
            return f"{scaled.numerator}{suffix}"
    raise AssertionError(f"{value} is rounded to nanos, so a suffix fits")


def _in_nanos(value: Fraction) -> Fraction:
    if (value * 10**9).denominator == 1:
        return value
    nanos = ceil(abs(value) * 10**9)
    return Fraction(nanos if value > 0 else -nanos, 10**9)
