"""Whether an answer may be evaluated as Python or as a formula, as some scorers do with answers.

What a policy wrote must not run as code where it is scored, nor fill the memory, nor take for ever.
So it is a literal, plain words, or a short formula: numbers, names, operators, and the functions of
a textbook. A formula has bounded exponents and few of them within one another.
"""

import ast
import re

_MAX_CHARACTERS = 2000
_MAX_PARTS = 500
_MAX_DIGITS = 30
_MAX_EXPONENT = 100
_MAX_NESTED = 2  # powers and functions
_WORDS = re.compile(r"[\w\s,]*")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UAdd, ast.USub)
_FUNCTIONS = {"Abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot"}
_FUNCTIONS |= {"coth", "csc", "exp", "ln", "log", "sec", "sin", "sinh", "sqrt", "tan", "tanh"}


def is_harmless(answer: str) -> bool:
    """Whether evaluating an answer does nothing but compute a value, and soon."""
    if len(answer) > _MAX_CHARACTERS:
        return False
    return _WORDS.fullmatch(answer) is not None or _is_literal(answer) or _is_formula(answer)


def _is_literal(answer: str) -> bool:
    try:
        ast.literal_eval(answer.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_formula(answer: str) -> bool:
    try:
        tree = ast.parse(answer.strip(), mode="eval")
        parts = sum(1 for _ in ast.walk(tree))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return parts <= _MAX_PARTS and _is_bounded(tree.body, _MAX_NESTED)


def _is_bounded(part: ast.AST, nested: int) -> bool:
    """Whether a part of a formula has at most so many powers and functions within one another."""
    match part:
        case ast.Constant(value=int() | float() as number):
            return len(str(number)) <= _MAX_DIGITS
        case ast.Name():
            return True
        case ast.UnaryOp(op=sign, operand=operand):
            return isinstance(sign, _OPERATORS) and _is_bounded(operand, nested)
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent) if nested:
            return _is_bounded(base, nested - 1) and _is_exponent(exponent, nested - 1)
        case ast.BinOp(op=operator, left=left, right=right):
            known = isinstance(operator, _OPERATORS)
            return known and _is_bounded(left, nested) and _is_bounded(right, nested)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if nested:
            return name in _FUNCTIONS and _is_bounded(argument, nested - 1)
    return False


def _is_exponent(part: ast.AST, nested: int) -> bool:
    """Whether an exponent is small: each of its numbers is, and it has no product or power."""
    match part:
        case ast.Constant(value=int() | float() as number):
            return number <= _MAX_EXPONENT
        case ast.UnaryOp(operand=operand):
            return _is_exponent(operand, nested)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Div(), left=left, right=right):
            return _is_exponent(left, nested) and _is_exponent(right, nested)
    return isinstance(part, ast.Name)
