"""Whether an answer may be evaluated as Python or as a formula, as some scorers do with answers.

What a policy wrote must not act where it is scored, nor read what is right there. So it is made of
numbers, plain words as strings, lists and the like, single letters, operators, and the functions of
a textbook; or it is plain words and no Python. What it costs to evaluate is limited elsewhere
(`scoring.py`).
"""

import ast
import re

_WORDS = re.compile(r"[\w\s,]*")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)
_CONTAINERS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp, ast.Load)
_NAMES = {"Abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "coth"}
_NAMES |= {"csc", "exp", "ln", "log", "pi", "sec", "sin", "sinh", "sqrt", "tan", "tanh"}


def is_harmless(answer: str) -> bool:
    """Whether evaluating an answer, stripped of white space, does nothing but compute a value."""
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except SyntaxError:
        return _WORDS.fullmatch(answer) is not None
    except (ValueError, MemoryError, RecursionError):
        return False
    return all(map(_is_allowed, ast.walk(tree.body)))


def _is_allowed(part: ast.AST) -> bool:
    """Whether a part of an expression may be there, whatever is in it."""
    match part:
        case ast.Constant(value=str() as text):  # evaluated in its turn by some
            return _WORDS.fullmatch(text) is not None
        case ast.Constant(value=value):
            return not isinstance(value, bytes)
        case ast.Name(id=name):  # of more letters, it may be a variable of the scorer's
            return len(name) == 1 or name in _NAMES
        case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]):
            return name in _NAMES
    return isinstance(part, (*_OPERATORS, *_CONTAINERS))
