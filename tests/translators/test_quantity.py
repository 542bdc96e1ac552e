"""Quantities are parsed as by Kubernetes, exact, and formatted canonically."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils import quantity as kubernetes_quantity

from translators.quantity import QuantityError, format_quantity, parse_quantity

_SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
_numbers = st.from_regex(r"[+-]?[0-9]{1,4}(\.[0-9]{0,3})?", fullmatch=True)
_quantities = st.builds(
    lambda number, suffix: number + suffix, _numbers, st.sampled_from(_SUFFIXES)
)


def _oracle(text: str) -> Fraction:
    return Fraction(kubernetes_quantity.parse_quantity(text))  # type: ignore[no-untyped-call]


def _is_kept(text: str) -> bool:
    """Whether Kubernetes represents the value exactly. It rounds values finer than 1 n, and caps
    values with a binary suffix at 63 bits; the Python client does not."""
    value = _oracle(text)
    return (value * 10**9).denominator == 1 and (abs(value) < 2**63 or not text.endswith("i"))


_kept = _quantities.filter(_is_kept)
#: Values that can be formatted with a binary suffix and parsed again.
_small = _quantities.filter(lambda text: abs(_oracle(text)) < 2**63)


@given(_kept)
def test_quantity_is_parsed_as_by_the_python_client(text: str) -> None:
    assert parse_quantity(text) == _oracle(text)


@given(st.from_regex(r"[0-9]{1,3}[eE][+-]?[0-9]{1,2}", fullmatch=True).filter(_is_kept))
def test_exponent_is_parsed_as_by_the_python_client(text: str) -> None:
    assert parse_quantity(text) == _oracle(text)


@given(_small.filter(_is_kept), st.booleans())
def test_formatted_quantity_is_parsed_to_the_same_value(text: str, binary: bool) -> None:
    assert parse_quantity(format_quantity(parse_quantity(text), binary=binary)) == parse_quantity(
        text
    )


@given(_small, st.booleans())
def test_format_is_canonical(text: str, binary: bool) -> None:
    printed = format_quantity(parse_quantity(text), binary=binary)

    assert format_quantity(parse_quantity(printed), binary=binary) == printed
    assert "." not in printed


@given(st.fractions(max_denominator=10**12))
def test_value_finer_than_a_nano_is_rounded_away_from_zero(value: Fraction) -> None:
    printed = parse_quantity(format_quantity(value))

    assert abs(value) <= abs(printed) < abs(value) + Fraction(1, 10**9)
    assert printed * value >= 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1n", Fraction(1, 10**9)),
        ("-0.1n", Fraction(-1, 10**9)),
        ("1e-12", Fraction(1, 10**9)),
        ("8Ei", Fraction(2**63 - 1)),
        ("-9Ei", Fraction(1 - 2**63)),
        ("10E", Fraction(10**19)),
    ],
)
def test_unrepresentable_value_is_rounded(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("value", "binary", "printed"),
    [
        (Fraction(3, 2), False, "1500m"),
        (Fraction(2**31), True, "2Gi"),
        (Fraction(2**31), False, "2147483648"),
        (Fraction(512), True, "512"),
        (Fraction(1536), True, "1536"),
        (Fraction(-(2**20)), True, "-1Mi"),
        (Fraction(10**19), False, "10E"),
        (Fraction(0), True, "0"),
        (Fraction(-1, 10**12), False, "-1n"),
    ],
    ids=str,
)
def test_formatted_text(value: Fraction, binary: bool, printed: str) -> None:
    assert format_quantity(value, binary=binary) == printed


@pytest.mark.parametrize("text", ["1e308", "-1e999", "9" * 63 + "E", "9" * 64, "1" * 48 + ".1e9"])
@pytest.mark.parametrize("binary", [False, True])
def test_formatted_huge_quantity_can_be_parsed(text: str, binary: bool) -> None:
    printed = parse_quantity(format_quantity(parse_quantity(text), binary=binary))
    assert abs(printed) == (2**63 - 1 if binary else 10**48)
    assert printed * parse_quantity(text) > 0


@pytest.mark.parametrize("sign", ["", "-"])
def test_longest_formatted_quantity_is_exact(sign: str) -> None:
    text = f"{sign}{'9' * 48}.123456789"
    assert parse_quantity(format_quantity(parse_quantity(text))) == parse_quantity(text)


@pytest.mark.parametrize(
    "text", ["", "1K", "1ki", "1mi", "1 Gi", "Gi", "1e", "0x1", "1_000", "٣", "NaN", "1Gi\n"]
)
def test_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(QuantityError, match="not a quantity"):
        parse_quantity(text)


def test_numbers_are_parsed_as_text() -> None:
    assert [parse_quantity(2), parse_quantity(0.5)] == [Fraction(2), Fraction(1, 2)]
