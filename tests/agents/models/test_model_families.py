"""Every decoder family of Transformers gives through the engine what it gives alone.

docs/models.md says which path each takes. The families run by default are one of each kind: the
rest of the list, which adds no new part, is marked slow.
"""

import warnings
from typing import Any

import pytest

from gymnast.agents import TransformersAgent
from gymnast.agents.engine.capture_check import reads_values
from gymnast.agents.transformers_agent import ExecutorName
from gymnast.types import Completion
from model_contract import examine, play
from model_families import FAMILIES, tiny
from model_report import GENERATE_FAILS, REPORT, report, row

EACH_KIND = [
    "afmoe",
    "bamba",
    "bloom",
    "cohere2",
    "deepseek_v2",
    "deepseek_v32",
    "diffllama",
    "falcon (alibi)",
    "falcon_h1",
    "gemma2",
    "gemma3n_text",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "inkling_text",
    "lfm2",
    "llama",
    "llama4_text",
    "mamba",
    "mamba2",
    "minimax",
    "minimax_m3_vl_text",
    "ministral3",
    "mistral",
    "mpt",
    "nemotron",
    "olmo3",
    "openai-gpt",
    "opt",
    "phi3 (longrope)",
    "phimoe",
    "qwen3_moe",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "smollm3",
    "xlstm",
    "zamba2",
    "zaya",
]


@pytest.fixture(autouse=True)
def _no_warnings_of_other_peoples_code() -> None:
    # Models warn of kernels they do without and of settings they no longer use.
    warnings.simplefilter("ignore")


def listed() -> dict[str, tuple[str, str]]:
    """The path of each family and what its CUDA graphs lack, as the page says."""
    lines = [line for line in REPORT.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    return {family: (path, graph) for family, _, path, graph, *_ in cells}


PACKED = [
    family if family in EACH_KIND else pytest.param(family, marks=pytest.mark.slow)
    for family, (path, _) in listed().items()
    if path == "packed"
]


@pytest.mark.parametrize("family", EACH_KIND)
def test_what_is_sampled_is_what_the_model_alone_gives(family: str) -> None:
    path = examine(tiny(family), generate=family not in GENERATE_FAILS)
    assert path == listed()[family][0]


def turns_over(executor: ExecutorName, model: Any) -> dict[tuple[Any, ...], Completion]:
    """All completions of some episodes on an executor."""
    agent = TransformersAgent(
        model, max_batch=3, prefill_tokens=16, kv_budget_bytes=2**22, executor=executor
    )
    return {(*context, greedy): completion for context, completion, greedy in play(agent)}


@pytest.mark.parametrize("family", PACKED)
def test_pages_give_what_rows_give(family: str) -> None:
    model = tiny(family)
    rows, pages = turns_over("rows", model), turns_over("pages", model)
    assert rows.keys() == pages.keys()
    for turn, expected in rows.items():
        assert pages[turn].ids == expected.ids
        assert pages[turn].logprobs == pytest.approx(expected.logprobs, abs=2e-5)


@pytest.mark.parametrize("family", PACKED)
def test_the_page_says_what_graphs_cannot_hold(family: str) -> None:
    found = reads_values(tiny(family))
    assert listed()[family][1] == ("yes" if found is None else f"no: {found}")


def test_the_page_lists_every_family_tried() -> None:
    assert list(listed()) == list(FAMILIES)


@pytest.mark.slow
def test_the_page_says_what_happens() -> None:
    written = report([row(family) for family in FAMILIES])
    assert written == REPORT.read_text(), "run: python benchmarks/model_report.py"
