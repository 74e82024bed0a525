"""Every decoder family of Transformers gives through the engine what it gives alone.

docs/models.md says which path each takes. The families run by default are one of each kind: the
rest of the list, which adds no new part, is marked slow.
"""

import warnings

import pytest

from model_contract import examine
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


def listed_paths() -> dict[str, str]:
    """The path of each family, as the page says."""
    lines = [line for line in REPORT.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    return {family: path for family, _, path, *_ in cells}


@pytest.mark.parametrize("family", EACH_KIND)
def test_what_is_sampled_is_what_the_model_alone_gives(family: str) -> None:
    path = examine(tiny(family), generate=family not in GENERATE_FAILS)
    assert path == listed_paths()[family]


def test_the_page_lists_every_family_tried() -> None:
    assert list(listed_paths()) == list(FAMILIES)


@pytest.mark.slow
def test_the_page_says_what_happens() -> None:
    written = report([row(family) for family in FAMILIES])
    assert written == REPORT.read_text(), "run: python benchmarks/model_report.py"
