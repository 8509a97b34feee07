"""Estimates how large the numbers in an arithmetic expression become, without computing them."""

from __future__ import annotations

import ast

BITS = 4096
"""More bits than any sensible answer needs, and still fast to compute."""


def stays_small(expression: str) -> bool:
    """Whether no number in it grows beyond `BITS` bits, and no power is expanded into more than `BITS` terms.

    `^` is a power. Text that Python cannot parse is not computed either, so it counts as small.
    """
    try:
        return _bits(ast.parse(expression.replace("^", "**").strip(), mode="eval").body) <= BITS
    except SyntaxError:
        return True
    except (RecursionError, MemoryError, ValueError):
        return False  # too deep, or a number of thousands of digits


def _bits(node: ast.expr) -> int:
    """An upper bound for the bits of its value. A name counts as two bits, whatever it stands for."""
    match node:
        case ast.Constant(int() as number):
            return number.bit_length()
        case ast.UnaryOp(operand=operand):
            return _bits(operand)
        case ast.BinOp(left, ast.Pow(), right):
            base, exponent = _bits(left), _bits(right)
            # An exponent of b bits is below 2**b. Bits beyond those of BITS itself cannot change the result.
            return max(base, 1) << min(exponent, BITS.bit_length())
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return max(_bits(left), _bits(right)) + 1
        case ast.BinOp(left, _, right):
            return _bits(left) + _bits(right)
        case ast.Call(args=arguments):
            return max(map(_bits, arguments), default=0)
        case _:
            return 2
