"""Agents on each executor of the engine: contiguous rows, and pages."""

from collections.abc import Callable
from typing import Any, Literal

import pytest

from gymnast.agents import TransformersAgent

Executor = Literal["rows", "pages"]
MakeAgent = Callable[..., TransformersAgent]
BUDGET = 2**25  # bytes; pages take all of them at once


@pytest.fixture(scope="session", params=["rows", "pages"])
def executor(request: pytest.FixtureRequest) -> Executor:
    """The executor that a test's agents use; a test that takes it runs with each."""
    chosen: Executor = request.param
    return chosen


@pytest.fixture(scope="session")
def make_agent(executor: Executor) -> MakeAgent:
    """Make an agent on that executor: `make_agent(model, tokenizer, max_batch=3)`."""

    def make(model: Any, tokenizer: Any = None, **settings: Any) -> TransformersAgent:
        settings = {"kv_budget_bytes": BUDGET, **settings}
        return TransformersAgent(model, tokenizer, executor=executor, **settings)

    return make
