"""Expressions that would take for ever to compute are known before anyone tries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.expression_size import BITS, stays_small

numbers = st.integers(0, 9).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: st.builds("({}{}{})".format, inner, st.sampled_from(["+", "-", "*", "**"]), inner),
    max_leaves=6,
)


@pytest.mark.parametrize(
    "expression", ["9**9**9", "9^9^9", "((9**99)**99)**99", "(x+1)**100000", "9**(9*99999)", "1" * 2000, "2**-9**9**9"]
)
def test_what_grows_beyond_all_bounds_is_not_small(expression: str) -> None:
    assert not stays_small(expression)


@pytest.mark.parametrize(
    "expression",
    ["(25 + 7) * 3 - 100/4", "x**12/12 + C", "exp(x**2)*log(2*x)", "2**64", "1e300", "I do not know", "", "2x + 1"],
)
def test_answers_are(expression: str) -> None:
    assert stays_small(expression)


@given(expressions)
def test_what_is_small_is_computed_and_is(expression: str) -> None:
    if stays_small(expression):
        try:
            value = eval(expression, {"__builtins__": {}})
        except (ZeroDivisionError, OverflowError):
            return
        assert not isinstance(value, int) or abs(value).bit_length() <= BITS
