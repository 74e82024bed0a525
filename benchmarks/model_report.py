"""Drive every decoder family through the engine, and write down which path it takes.

`python benchmarks/model_report.py` writes docs/models.md. It takes a minute or two.
"""

import re
import warnings
from collections import Counter
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.engine.capture_check import reads_values
from gymnast.agents.models.check_model import check_model
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.policy import Policy
from model_contract import examine
from model_families import FAMILIES, tiny
from model_gradients import TOLERANCE, difference

REPORT = Path(__file__).parent.parent / "docs" / "models.md"
# `model.generate` itself fails for these.
GENERATE_FAILS: frozenset[str] = frozenset()
INTRODUCTION = """# Models

Which decoders of Transformers the engine samples from, and how. Each family was tried with a tiny
random model made from its configuration class, with windows of 8 tokens where it has any: several
episodes of three turns at once, that begin alike, join and leave, with contexts much longer than a
window. Every log-probability is that of a full forward pass of the model alone (to 1e-4, float32),
and greedy tokens are those of `model.generate` (up to ties closer than 1e-4). Families that share
their forward pass with one below (most that are not listed) go the same way. This page is
generated, and a test fails when it is out of date:

<!-- commands: long -->
```sh
python benchmarks/model_report.py
pytest -m "slow or not slow" tests/agents/models/test_model_families.py
```

The columns:

- *path*: `TransformersAgent.path`. "packed" is the fast one: the tokens of all requests in one
  forward pass. "states": the model's own forward and cache, and all that decode in one pass. The
  agent chooses by itself, from what the model does and not from its name; so the path of a real
  model can be another where its configuration is (a chunk of attention longer than the contexts,
  say).
- *CUDA graph*: whether a GPU replays the steps of a packed model as CUDA graphs. "no" names the
  first operation that a graph cannot hold, because it reads a value on the host or has a size that
  depends on values; such a model samples several times slower. What only a GPU does otherwise is
  not seen here: without such an operation torch multiplies experts in bfloat16 alone, on GPUs of
  compute capability 9 or 10.
- *continued with*: what a kept state can be continued with, on the path "states". "one token at a
  time" makes what an environment appends slower; "nothing" computes the whole context for each
  token. "alone": requests do not share a pass, because their caches could not be joined or gave
  something else when they were.
- *training*: how trajectories go through the model in training. "packed": those of a micro-batch in
  one sequence, in which a prompt that they share is computed once. "padded": each is a row, sorted
  by length so that little is padded, and computes its prompt anew. Either way the gradient of
  several trajectories is that of the model's own forward, one by one, to 1e-5 (float32, and float64
  where that is too coarse). "refused" says why.
- *not packed, because it*: what the agent and the trainer log when they take the slower path.

Transformers {version}. {counts}

| family | model | path | CUDA graph | continued with | training | not packed, because it |
| --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Row:
    """What the page says of one family."""

    family: str
    model: str
    path: str
    cuda_graph: str
    continued_with: str
    training: str
    because: str


def row(family: str) -> Row:
    """Try one family.

    Raises:
        AssertionError: What was sampled is not what the model alone gives.
    """
    model = tiny(family)
    path = examine(model, generate=family not in GENERATE_FAILS)
    cuda_graph, continued_with, because = "", "", ""
    if path == "packed":
        operation = reads_values(model)
        cuda_graph = "yes" if operation is None else f"no: {operation}"
    else:
        forward = OwnForward(model)
        continued_with = forward.continuation.value.partition(":")[0]
        if forward.batching is None:
            continued_with += ", alone"
        because = reason(model)
    return Row(
        family, type(model).__name__, path, cuda_graph, continued_with, training(model), because
    )


def reason(model: Any) -> str:
    """Why a model cannot be packed, in short."""
    try:
        check_model(model)
    except ModelError as error:
        return re.split(r" \(|: |, each", str(error).partition(" ")[2])[0]
    return ""


def training(model: Any) -> str:
    """How the trainer's policy takes the model.

    Raises:
        AssertionError: Its gradient is not the model's own.
    """
    try:
        policy = Policy(model)
    except ModelError as error:
        return f"refused: {error}"
    off = difference(model, policy)
    assert off < TOLERANCE, f"{type(model).__name__}: the gradient is off by {off:.1g}"
    return policy.path


def report(rows: list[Row]) -> str:
    """The whole page."""
    paths = Counter(row.path for row in rows)
    counts = f"{len(rows)} families: sampled from " + ", ".join(
        f"{n} {path}" for path, n in paths.most_common()
    )
    trained = Counter(row.training.partition(":")[0] for row in rows)
    counts += "; trained " + ", ".join(f"{n} {path}" for path, n in trained.most_common()) + "."
    head = INTRODUCTION.format(version=transformers.__version__, counts=counts)
    return head + "".join(f"| {' | '.join(astuple(row))} |\n" for row in rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    REPORT.write_text(report([row(family) for family in FAMILIES]))
