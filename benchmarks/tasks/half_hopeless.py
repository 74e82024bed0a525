"""Rows of the shop in examples/shop.py, half of which have an answer that nothing says."""

import json
from pathlib import Path

import numpy as np

from gymnast.envs import make

SHOP = Path(__file__).parents[2] / "examples" / "shop.py"


def write_rows(path: Path, count: int = 512) -> None:
    """Write rows as JSON lines; the hopeless ones have `hopeless` true.

    Args:
        path: The file.
        count: How many rows.
    """
    rng = np.random.default_rng(0)
    shop = make(f"{SHOP}:Shop")
    rows = [{**shop.sample_row(rng), "hopeless": number % 2 == 1} for number in range(count)]
    rows = [{**row, "answer": -1} if row["hopeless"] else row for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
