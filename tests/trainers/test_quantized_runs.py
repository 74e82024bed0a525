"""Runs on 4-bit weights: they learn, resume, save a plain model, and refuse what cannot work."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import load_peft_weights, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from command_fixtures import CommandLine
from gymnast.agents import TransformersAgent, VLLMAgent, load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import ConfigError, ModelError
from gymnast.trainers import Kl, Trainer, make_algorithm
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import parse_config
from gymnast.types import Sampling

bitsandbytes: Any = pytest.importorskip("bitsandbytes")  # GPU machines may lack it
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft's

ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.")]
# Adapters in every quantised layer, and on the head, which random layers leave most to learn.
LORA: dict[str, Any] = {
    "rank": 16,
    "target": [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
        "lm_head",
    ],
}
NF4: dict[str, Any] = {"lora": LORA, "quantization": "nf4"}
RUN = ["trainer.rows_per_step=1", "evaluation.rows=2", "-q"]
OF_RUN = ["model.lora={rank: 4}", "model.quantization=nf4", "model.dtype=bfloat16"]
WARMUP = "warmup={demonstrations: solve, steps: 2, rows_per_step: 2, learning_rate: 0.02}"


class SmallLetters(Environment):
    """The share of small letters in the answer: about 0.2 before training."""

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


def make_trainer(model: Any, tokenizer: Any, **settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=8),
        "group_size": 4,
        "rows_per_step": 2,
        "steps": 2,
        "learning_rate": 1e-2,
        "observer": None,
    }
    return Trainer(model, tokenizer, SmallLetters, ROWS, **(small | settings))


def lines(folder: Path, name: str) -> list[float]:
    """A metric of each step."""
    read = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in read if name in line]


# --- It learns


@pytest.mark.parametrize(
    ("executor", "dtype", "rounding"), [("rows", "float32", 1e-5), ("pages", "bfloat16", 0.02)]
)
def test_training_raises_the_reward_on_4_bit_weights(
    executor: str, dtype: str, rounding: float, tokenizer: Any, tmp_path: Path
) -> None:
    model, _ = load_model("tiny:", dtype=dtype, tokenizer=tokenizer, **NF4)
    model.config.max_position_embeddings = 256  # plain attention over pages gathers all of them
    trainer = make_trainer(
        model,
        tokenizer,
        group_size=16,
        steps=16,
        learning_rate=2e-2,
        eval_rows=ROWS * 16,
        agent={"executor": executor},
        output_dir=tmp_path,
    )
    codes = {
        name: layer.weight.data.clone()
        for name, layer in model.named_modules()
        if isinstance(layer, bitsandbytes.nn.Linear4bit)
    }
    summary = trainer.train()
    assert summary["before"] < 0.35
    assert summary["after"] > 0.75
    assert max(lines(tmp_path, "engine/logprob_difference")) < rounding
    layers = dict(model.named_modules())
    assert len(codes) == 28
    assert all(torch.equal(layers[name].weight.data, each) for name, each in codes.items())


def test_a_penalty_compares_with_the_quantised_base(tokenizer: Any, tmp_path: Path) -> None:
    model, _ = load_model("tiny:", tokenizer=tokenizer, **NF4)
    algorithm = make_algorithm("grpo", kl=Kl(0.1))
    make_trainer(model, tokenizer, algorithm=algorithm, output_dir=tmp_path).train()
    first, second = lines(tmp_path, "kl")
    assert first == pytest.approx(0.0, abs=1e-6) and second > 1e-5


def test_the_estimate_counts_codes_and_scales(tokenizer: Any) -> None:
    lora = {"rank": 4}
    plain, ours = (
        make_trainer(
            load_model("tiny:", tokenizer=tokenizer, lora=lora, quantization=name)[0], tokenizer
        ).learner.memory.fixed
        for name in (None, "nf4")
    )
    linear = 4 * (128 * (128 + 64 + 64 + 128) + 3 * 128 * 384)  # weights
    codebooks = 28 * 4 * (16 + 256 + 1)  # of each layer: codes, codes of scales, their mean
    second_scales = 4 * sum(-(-size // (64 * 256)) for size in [16384, 8192, 8192, 16384] * 4)
    second_scales += 4 * 12 * 3
    expected = linear // 2 + linear // 64 + codebooks + second_scales
    assert plain.weights - ours.weights == 4 * linear - expected
    assert (ours.folded, plain.folded) == (0, 4 * linear)
    assert (ours.optimizer, ours.gradients) == (plain.optimizer, plain.gradients)


# --- It is kept


@pytest.fixture
def run(gymnast: CommandLine) -> Path:
    assert gymnast("train", "run.yaml", *RUN, *OF_RUN, WARMUP, "trainer.steps=1").code == 0
    return Path("out")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(3, 40)[None]).logits
    return found.float()


def test_a_run_saves_a_plain_model_and_its_adapters(run: Path, gymnast: CommandLine) -> None:
    """The model is W + s B A of every layer, rounded once, and loads without bitsandbytes."""
    assert gymnast("export", "out", "--output", "whole").code == 0
    assert gymnast("export", "out", "--adapter", "--output", "alone").code == 0
    model, _ = load_model("tiny:", dtype="bfloat16", lora={"rank": 4}, quantization="nf4")
    set_peft_model_state_dict(model, load_peft_weights("alone"))
    compared = 0
    for folder in ("out/model", "whole"):
        assert "quantization" not in Path(folder, "config.json").read_text()
        plain = AutoModelForCausalLM.from_pretrained(folder)
        for name, layer in model.get_base_model().named_modules():
            if isinstance(getattr(layer, "base_layer", None), bitsandbytes.nn.Linear4bit):
                weight = layer.base_layer.weight
                weight = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
                adapters = (layer.lora_A["default"], layer.lora_B["default"])
                down, up = (part.weight.float() for part in adapters)
                assert up.abs().max() > 0
                total = weight.float() + layer.scaling["default"] * (up @ down)
                assert torch.equal(plain.get_submodule(name).weight, total.bfloat16()), name
                compared += 1
    assert compared == 2 * 28
    card = ModelCard.load(Path("whole/README.md"))
    assert "nf4" in card.text and "bitsandbytes" in card.text


def test_an_evaluation_of_a_run_takes_its_plain_model(run: Path, gymnast: CommandLine) -> None:
    """Quantised once more, it would be another policy."""
    assert gymnast("eval", "out").code == 0
    config = yaml.safe_load(Path("out/evaluations/001/config.yaml").read_text())
    assert config["model"].get("quantization") is None
    compared = gymnast("compare", "out", "out/evaluations/001")
    assert "model.quantization" not in compared.output + compared.errors, "it is in the model"


def test_a_run_resumes_on_the_same_base(run: Path, gymnast: CommandLine) -> None:
    more = [*RUN, *OF_RUN, WARMUP, "trainer.steps=2"]
    assert gymnast("train", "run.yaml", *more, "--resume").code == 0
    resumed = Path("out/metrics.jsonl").read_text().splitlines()
    assert gymnast("train", "run.yaml", *more, "output_dir=whole").code == 0
    whole = Path("whole/metrics.jsonl").read_text().splitlines()
    last, same = (json.loads(each[-1])["eval/reward/mean"] for each in (resumed, whole))
    assert last == same
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(f"{name}/model") for name in ("out", "whole")
    )
    assert torch.equal(logits(ours), logits(theirs))
    checkpoints = [*Path("out/checkpoints").rglob("*"), *Path("whole/checkpoints").rglob("*")]
    largest = max(path.stat().st_size for path in checkpoints if path.is_file())
    assert largest < 2**20, "the adapters alone"


def test_another_quantization_does_not_resume(run: Path, gymnast: CommandLine) -> None:
    plain = [*OF_RUN[:1], "model.dtype=bfloat16"]
    failed = gymnast("train", "run.yaml", *RUN, *plain, WARMUP, "trainer.steps=2", "--resume")
    assert failed.code != 0 and "model.quantization: is not set" in failed.errors


def test_a_run_in_python_writes_a_config_that_loads(tokenizer: Any, tmp_path: Path) -> None:
    name = str(tmp_path / "base")
    tiny_model().save_pretrained(name)
    model, _ = load_model(name, tokenizer=tokenizer, lora={"rank": 4}, quantization="nf4")
    make_trainer(model, tokenizer, steps=1, output_dir=tmp_path / "run").train()
    text = (tmp_path / "run/config.yaml").read_text()
    assert "# Left out: model.quantization" in text
    assert "quantization" not in yaml.safe_load(text)["model"]


# --- Refused by name


def build(**sections: Any) -> Any:
    settings: dict[str, Any] = {
        "model": {"name": "tiny:", **NF4},
        "environment": {"id": "gymnast/Arithmetic-v0"},
        "trainer": {"steps": 1, "rows_per_step": 1},
        **sections,
    }
    return build_trainer(parse_config(settings))


@pytest.mark.parametrize(
    ("model", "key", "fix"),
    [
        ({"quantization": "nf4"}, "model.quantization: is nf4", "lora"),
        ({**NF4, "dtype": "float16"}, "model.dtype: must be bfloat16 or float32", "bfloat16"),
        ({**NF4, "quantization": "int8"}, "model.quantization: must be", "nf4"),
    ],
)
def test_what_cannot_be_quantised_is_refused(model: Any, key: str, fix: str) -> None:
    with pytest.raises((ConfigError, ModelError)) as refusal:
        build(model={"name": "tiny:", **model})
    assert str(refusal.value).startswith(key) and fix in str(refusal.value)


def test_servers_are_refused_before_they_start(tokenizer: Any) -> None:
    vllm = {"backend": "vllm", "urls": ["http://localhost:1"]}
    with pytest.raises(ConfigError) as refusal:
        build(agent=vllm)
    assert str(refusal.value).startswith("agent.backend: is vllm")
    model, _ = load_model("tiny:", tokenizer=tokenizer, **NF4)
    agents: list[Any] = [vllm, object.__new__(VLLMAgent)]
    for agent in agents:
        with pytest.raises(ConfigError, match=r"agent\.backend: is vllm"):
            make_trainer(model, tokenizer, agent=agent)


@pytest.mark.parametrize(
    ("launcher", "by"),
    [
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, "FSDP"),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}, "ZeRO-2"),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "ZeRO-3"),
    ],
)
def test_divided_weights_are_refused(
    launcher: dict[str, str], by: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = load_model("tiny:", tokenizer=tokenizer, **NF4)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    for make in (build, lambda: make_trainer(model, tokenizer)):
        with pytest.raises(ConfigError) as refusal:
            make()
        message = str(refusal.value)
        assert message.startswith("model.quantization: is nf4") and by in message


def test_an_agent_of_a_users_own_gets_plain_weights(tokenizer: Any) -> None:
    """One with a model of its own may be of float weights: they are dequantised for it."""
    model, _ = load_model("tiny:", tokenizer=tokenizer, lora={"rank": 4}, quantization="nf4")
    agent = TransformersAgent(tiny_model(seed=1), tokenizer)
    trainer = make_trainer(model, tokenizer, agent=agent)
    trainer.train()
    torch.testing.assert_close(
        logits(agent.model),
        logits(model),
        rtol=1e-4,
        atol=1e-4,
    )
