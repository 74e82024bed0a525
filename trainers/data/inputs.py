"""Whether what Python code passes to a trainer or a rollout is of the right kind.

An error says what the value is and how to make the right one from it. Numbers are checked by
`trainers/base/settings.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gymnast.errors import ConfigError, DataError, ModelError
from gymnast.trainers.data.rows import Row, RowSource
from gymnast.types import Sampling

_LOAD = "model, tokenizer = load_model({name!r}, dtype='bfloat16')"


def check_inputs(model: Any, tokenizer: Any, rows: Any, sampling: Any, eval_sampling: Any) -> None:
    """What `Trainer` is given, each under the name of its argument.

    Raises:
        ModelError: The model or the tokenizer is something else.
        DataError: The rows are.
        ConfigError: The sampling of training or of evaluation is.
    """
    check_model_and_tokenizer(model, tokenizer)
    check_rows_kind(rows)
    check_sampling_kind(sampling)
    check_sampling_kind(eval_sampling, "eval_sampling")


def check_model_and_tokenizer(model: Any, tokenizer: Any) -> None:
    """A model of torch's and a tokenizer with a chat template.

    Raises:
        ModelError: They are something else.
    """
    if not isinstance(model, torch.nn.Module):
        name = model if isinstance(model, str) else "tiny:"
        raise ModelError(
            f"model: must be a model of Transformers, got {model!r:.100}; load one with "
            f"gymnast.agents.load_model: {_LOAD.format(name=name)}"
        )
    if not hasattr(tokenizer, "apply_chat_template"):
        raise ModelError(
            f"tokenizer: must be a tokenizer of Transformers, got {tokenizer!r:.100}; "
            "gymnast.agents.load_model returns it with the model"
        )


def check_sampling_kind(sampling: Any, name: str = "sampling") -> None:
    """A `Sampling`, or None for the default one.

    Raises:
        ConfigError: It is something else.
    """
    if sampling is None or isinstance(sampling, Sampling):
        return
    given = sampling if isinstance(sampling, Mapping) else {"temperature": 1.0}
    inner = ", ".join(f"{key}={value!r}" for key, value in given.items())
    raise ConfigError(
        f"{name}: must be a gymnast.types.Sampling, got {sampling!r:.100}; write Sampling({inner})"
    )


def check_rows_kind(rows: Any, name: str = "rows") -> None:
    """A `RowSource`, or a sequence of dicts such as a list or a dataset.

    Raises:
        DataError: It is something else; the message says how to make rows of it.
    """
    if isinstance(rows, RowSource):
        return
    problem = _kind_problem(rows)
    if problem:
        raise DataError(f"{name}: must be a list of dicts or a RowSource, {problem}")


def as_rows(rows: Any, name: str = "rows") -> Sequence[Row]:
    """Evaluation rows, checked; an array of NumPy becomes a list.

    Raises:
        DataError: They are no sequence of dicts, or have no end.
    """
    if isinstance(rows, RowSource):
        raise DataError(
            f"{name}: must be a list of dicts, got {rows!r:.100}, which has no end; take some of "
            "its rows: [source.row(i) for i in range(128)]"
        )
    problem = _kind_problem(rows)
    if problem:
        raise DataError(f"{name}: must be a list of dicts, {problem}")
    return list(rows) if isinstance(rows, np.ndarray) else rows


def _kind_problem(rows: Any) -> str:
    """What is given in place of rows and what to do; "" if they are rows."""
    if rows is None:
        return "got None; a row is a dict such as {'prompt': 'What is 2 + 3?', 'answer': 5}"
    if isinstance(rows, str):
        return f"got {rows!r:.100}; gymnast.trainers.load_rows({rows!r:.100}) reads a file"
    if hasattr(rows, "to_dict") and hasattr(rows, "columns") and hasattr(rows, "iloc"):
        return f"got a {type(rows).__name__}; pass frame.to_dict('records')"
    if isinstance(rows, Mapping):
        return f"got a dict with the keys {', '.join(map(str, rows))[:100]}; one row is [row]"
    if isinstance(rows, np.ndarray) and rows.ndim != 1:
        return f"got an array of the shape {rows.shape}"
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        return f"got {rows!r:.100}; make a list of what can be iterated only once: list(rows)"
    wrong = [i for i, row in enumerate(_looked_at(rows)) if not isinstance(row, Mapping)]
    return f"and row {wrong[0]} is {rows[wrong[0]]!r:.100}" if wrong else ""


def _looked_at(rows: Sequence[Any]) -> Sequence[Any]:
    """All of a list, and of a dataset, which is costly to go through, the first row."""
    return rows if isinstance(rows, list | tuple) else [rows[0]] if len(rows) else []
