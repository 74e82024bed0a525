"""Questions and changes of Gymnast's own about a small shop, each with the SQL that solves it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kim", "Lea")
_CITIES = ("Bern", "Lima", "Oslo", "Rome", "York")
_ITEMS = ("chair", "clock", "desk", "lamp", "shelf")
SCHEMA = """\
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, item TEXT, price INTEGER);
"""
_ALL = "SELECT * FROM {} ORDER BY id"
_JOINED = "orders JOIN customers ON customers.id = customer_id"

# Each with the query that answers it.
QUESTIONS = {
    "How many customers live in {city}?": "SELECT COUNT(*) FROM customers WHERE city = '{city}'",
    "Which customers live in {city}? Give their names.": (
        "SELECT name FROM customers WHERE city = '{city}'"
    ),
    "How many orders are there for a {item}?": "SELECT COUNT(*) FROM orders WHERE item = '{item}'",
    "What is the highest price paid for a {item}?": (
        "SELECT MAX(price) FROM orders WHERE item = '{item}'"
    ),
    "How much did {name} pay in all?": (
        f"SELECT SUM(price) FROM {_JOINED} WHERE name = '{{name}}'"
    ),
    "How much was paid in each city? Give city and sum.": (
        f"SELECT city, SUM(price) FROM {_JOINED} GROUP BY city"
    ),
}
# Each with the statement that makes it, and the table that changes.
CHANGES = {
    "Raise the price of every order of a {item} by {number}.": (
        "UPDATE orders SET price = price + {number} WHERE item = '{item}'",
        "orders",
    ),
    "Delete all orders that cost less than {price}.": (
        "DELETE FROM orders WHERE price < {price}",
        "orders",
    ),
    "{name} has moved to {city}. Change that.": (
        "UPDATE customers SET city = '{city}' WHERE name = '{name}'",
        "customers",
    ),
}


def task(rng: np.random.Generator, *, changes: bool) -> Mapping[str, Any]:
    """A row: a question about a shop, or a change to make in it.

    Args:
        rng: Draws the shop and the task.
        changes: Whether it is a change.
    """
    names = [str(name) for name in rng.permutation(_NAMES)[:8]]
    customers = [
        {"id": number, "name": name, "city": str(rng.choice(_CITIES))}
        for number, name in enumerate(names, start=1)
    ]
    orders = [
        {
            "id": number,
            "customer_id": int(rng.integers(1, len(names) + 1)),
            "item": str(rng.choice(_ITEMS)),
            "price": int(rng.integers(10, 100)),
        }
        for number in range(1, 16)
    ]
    words = {
        "name": str(rng.choice(names)),
        "city": str(rng.choice(_CITIES)),
        "item": str(rng.choice(_ITEMS)),
        "number": int(rng.integers(2, 10)),
        "price": int(rng.integers(20, 60)),
    }
    asked: dict[str, Any]
    if changes:
        prompt, (solution, table) = list(CHANGES.items())[int(rng.integers(len(CHANGES)))]
        asked = {"check": _ALL.format(table)}
    else:
        prompt, solution = list(QUESTIONS.items())[int(rng.integers(len(QUESTIONS)))]
        asked = {}
    return {
        "prompt": prompt.format(**words),
        "schema": SCHEMA,
        "tables": {"customers": customers, "orders": orders},
        "solution": solution.format(**words),
        **asked,
    }
