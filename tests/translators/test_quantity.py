"""Quantities: read as Kubernetes reads them, summed exactly, printed canonically."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from translators.quantity import QuantityError, is_binary, parse, render, total

_SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
_numbers = st.from_regex(r"[+-]?[0-9]{1,4}(\.[0-9]{0,3})?", fullmatch=True)
_quantities = st.builds(
    lambda number, suffix: number + suffix, _numbers, st.sampled_from(_SUFFIXES)
)
#: Kubernetes keeps nothing that is finer than a nano.
_kept = _quantities.filter(lambda text: (parse(text) * 10**9).denominator == 1)


def _oracle(text: str) -> Fraction:
    return Fraction(parse_quantity(text))  # type: ignore[no-untyped-call]


@given(_quantities)
def test_a_quantity_is_read_as_the_python_client_reads_it(text: str) -> None:
    assert parse(text) == _oracle(text)


@given(st.from_regex(r"[0-9]{1,3}[eE][+-]?[0-9]{1,2}", fullmatch=True))
def test_an_exponent_is_read_as_the_python_client_reads_it(text: str) -> None:
    assert parse(text) == _oracle(text)


@given(_kept, st.booleans())
def test_what_is_printed_reads_the_same(text: str, binary: bool) -> None:
    assert parse(render(parse(text), binary=binary)) == parse(text)


@given(_quantities, st.booleans())
def test_printing_is_canonical(text: str, binary: bool) -> None:
    printed = render(parse(text), binary=binary)

    assert render(parse(printed), binary=binary) == printed
    assert "." not in printed


@given(st.fractions(max_denominator=10**12))
def test_what_is_finer_than_a_nano_is_rounded_away_from_zero(value: Fraction) -> None:
    printed = parse(render(value))

    assert abs(value) <= abs(printed) < abs(value) + Fraction(1, 10**9)
    assert printed * value >= 0


@given(st.lists(_kept, max_size=5))
def test_a_sum_is_exact_and_does_not_depend_on_the_order(texts: list[str]) -> None:
    assert parse(total(texts)) == sum(map(parse, texts), Fraction(0))
    assert total(texts) == total(texts[::-1])


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
def test_printed_form(value: Fraction, binary: bool, printed: str) -> None:
    assert render(value, binary=binary) == printed


@pytest.mark.parametrize(
    "text", ["", "1K", "1ki", "1mi", "1 Gi", "Gi", "1e", "0x1", "1_000", "٣", "NaN", "1Gi\n"]
)
def test_what_is_not_a_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="not a quantity"):
        parse(text)


def test_numbers_are_taken_as_they_print() -> None:
    assert [parse(2), parse(0.5)] == [Fraction(2), Fraction(1, 2)]
    assert not is_binary(2)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], "0"),
        (["500m", "1500m"], "2"),
        (["16Gi", "16384Mi"], "32Gi"),
        (["0", "1Ki"], "1Ki"),
        (["1Ki", "500m"], "1024500m"),
    ],
    ids=[
        "of none",
        "of milli",
        "of binaries",
        "of zero and a binary",
        "of what has no binary form",
    ],
)
def test_sum(texts: list[str], expected: str) -> None:
    assert total(texts) == expected
