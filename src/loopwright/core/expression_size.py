"""How large the numbers of an arithmetic expression become, without computing it."""

from __future__ import annotations

import ast

BITS = 4096
"""More than any sensible answer needs, and computed in no time."""


def stays_small(expression: str) -> bool:
    """Whether no number in it grows beyond `BITS` bits, and no power is expanded into more terms than that.

    `^` is a power. What Python cannot parse is not computed either, so it is small.
    """
    try:
        return _bits(ast.parse(expression.replace("^", "**").strip(), mode="eval").body) <= BITS
    except SyntaxError:
        return True
    except (RecursionError, MemoryError, ValueError):
        return False  # too deep, or a number of thousands of digits


def _bits(node: ast.expr) -> int:
    """A bound for the bits of its value; a name, whatever it stands for, has two."""
    match node:
        case ast.Constant(int() as number):
            return number.bit_length()
        case ast.UnaryOp(operand=operand):
            return _bits(operand)
        case ast.BinOp(left, ast.Pow(), right):
            base, exponent = _bits(left), _bits(right)
            # The exponent is below 2 to its bits: beyond those of the bound itself, the rest does not matter.
            return max(base, 1) << min(exponent, BITS.bit_length())
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return max(_bits(left), _bits(right)) + 1
        case ast.BinOp(left, _, right):
            return _bits(left) + _bits(right)
        case ast.Call(args=arguments):
            return max(map(_bits, arguments), default=0)
        case _:
            return 2
