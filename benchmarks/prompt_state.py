"""What handing on the state of a group's prompt would bring to training on padded rows.

    python benchmarks/prompt_state.py

There each member of a group computes its prompt anew (`trainers/learner/policy/padded.py`). Here
the prompt is computed once, its cache stays in the graph, and a copy of it for each member is
continued. The first table says for each family that is not packed whether that gives the gradients
of the model's own forward (float64), and whether the continuation writes into the cache that it
was handed. The second says how much faster a forward and backward pass with 8 members becomes (CPU
seconds, float32), for some families at a larger width.
"""

import inspect
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers

from gymnast.agents.caches.own_pass import CACHE_NAMES
from gymnast.agents.caches.parts import parts, put, tensors
from gymnast.agents.models.double_precision import in_float64
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.policy import Policy
from model_contract import tokens
from model_families import FAMILIES, tiny

SAME = 1e-6
MEMBERS, ANSWER, PROMPTS = 8, 64, (512, 2048)
WIDE = {"hidden_size": 256, "max_position_embeddings": 4096}
TIMED: dict[str, dict[str, Any]] = {
    "llama4_text": {**WIDE, "attention_chunk_size": 8192},
    "lfm2": WIDE,
    "mamba2": {"hidden_size": 256, "num_heads": 32, "chunk_size": 64},
    "granitemoehybrid": {**WIDE, "mamba_n_heads": 32, "mamba_chunk_size": 64},
}
Loss = Callable[[Any, list[list[int]], int], torch.Tensor]


def separate(model: Any, rows: list[list[int]], prompt: int) -> torch.Tensor:
    """Each row computes the prompt."""
    logits = model(input_ids=_padded(rows), use_cache=False).logits
    return _loss(logits[:, prompt - 1 :], [row[prompt:] for row in rows])


def handed_on(model: Any, rows: list[list[int]], prompt: int) -> torch.Tensor:
    """The prompt is computed once."""
    return _handed_on(model, rows, prompt)[0]


def _handed_on(model: Any, rows: list[list[int]], prompt: int) -> tuple[torch.Tensor, bool]:
    """The loss, and whether the cache was written to."""
    takes = inspect.signature(model.forward).parameters
    name = next((name for name in CACHE_NAMES if name in takes), None)
    first = model(input_ids=torch.tensor([rows[0][:prompt]]), use_cache=True)
    cache = None if name is None else getattr(first, name, None)
    if name is None or cache is None:
        raise ModelError("it returns no cache")
    for path, part in list(parts(cache)):
        if isinstance(part, torch.Tensor) and part.ndim and part.shape[0] == 1:
            put(cache, path, part.expand(len(rows), *part.shape[1:]).clone())
    versions = [(tensor, tensor._version) for _, tensor in tensors(cache)]
    ids = _padded([row[prompt:] for row in rows])
    given = {name: cache, "use_cache": True}
    if "position_ids" in takes:
        given["position_ids"] = torch.arange(prompt, prompt + ids.shape[1]).expand(ids.shape)
    rest = model(input_ids=ids, **given).logits
    logits = torch.cat([first.logits[:, -1:].expand(len(rows), -1, -1), rest], dim=1)
    written = any(tensor._version != version for tensor, version in versions)
    return _loss(logits, [row[prompt:] for row in rows]), written


def _padded(rows: list[list[int]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


def _loss(logits: torch.Tensor, answers: list[list[int]]) -> torch.Tensor:
    """Logits [S, n + 1, V] that predict each answer from its first token on."""
    total = logits.new_zeros(())
    for number, answer in enumerate(answers):
        logprobs = torch.log_softmax(logits[number, : len(answer)], dim=-1)
        total = total + (number - 1.5) * logprobs.gather(1, torch.tensor(answer)[:, None]).sum()
    return total


def exactness(model: Any) -> str:
    """Whether gradients are the model's own, as a cell of a table."""
    prompt = tokens(0, 40)
    rows = [prompt + tokens(1 + number, length) for number, length in enumerate((21, 9, 30, 17))]
    found, written = [], False
    try:
        for shares in (False, True):
            model.zero_grad(set_to_none=True)
            with in_float64(model):
                if shares:
                    loss, written = _handed_on(model, rows, len(prompt))
                else:
                    loss = separate(model, rows, len(prompt))
            loss.backward()
            grads = [w.grad for w in model.parameters() if w.grad is not None]
            found.append(torch.cat([grad.double().flatten() for grad in grads]))
    except (ModelError, RuntimeError) as error:
        return "fails: " + str(error).split("[")[0].split(".")[0].strip(" :")
    off = float((found[0] - found[1]).norm() / found[0].norm())
    return ("exact" if off < SAME else f"off by {off:.0e}") + (", written to" if written else "")


def seconds(loss: Loss, model: Any, rows: list[list[int]], prompt: int) -> float:
    """The CPU time of a forward and a backward pass, the better of two."""
    taken = []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        start = time.process_time()
        loss(model, rows, prompt).backward()
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> None:
    """Print both tables."""
    print("| family | gradients |\n| --- | --- |")
    for family in FAMILIES:
        model = tiny(family)
        if Policy(model).path == "padded":
            print(f"| {family} | {exactness(model)} |", flush=True)
    print("\n| family | prompt | each computes it, s | handed on, s | ratio |\n|" + " --- |" * 5)
    for family, settings in TIMED.items():
        model = tiny(family, **settings)
        for length in PROMPTS:
            prompt = tokens(0, length)
            rows = [prompt + tokens(1 + member, ANSWER) for member in range(MEMBERS)]
            before, after = (seconds(loss, model, rows, length) for loss in (separate, handed_on))
            print(f"| {family} | {length} | {before:.2f} | {after:.2f} | {before / after:.1f} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    main()
