"""The model card of an exported run: what it is, how it came about and how to load it."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from gymnast.trainers.base.observer import EvaluatedPolicy
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.provenance.environment_file import read_starts
from gymnast.trainers.saving.run_folder import METRICS

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHOWN = ("torch", "transformers", "peft", "bitsandbytes", "vllm", "deepspeed")
_SETTINGS = ("algorithm", "sampling", "trainer", "warmup", "rewards")

LOADING = {
    "merged": """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{place}")
tokenizer = AutoTokenizer.from_pretrained("{place}")
""",
    "adapters": """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = {loader}
model = PeftModel.from_pretrained(base, "{place}")
tokenizer = AutoTokenizer.from_pretrained("{place}")
""",
}


def model_card(
    run: Path,
    config: RunConfig,
    *,
    merged: bool,
    place: str,
    best: EvaluatedPolicy | None = None,
) -> ModelCard:
    """The card of a run's model.

    Args:
        run: The run's folder.
        config: That of the run.
        merged: Whether the model is whole, and not adapters alone.
        place: Where others find it: a hub's id or a folder.
        best: The evaluation that its weights are of, where they are not the last ones.
    """
    starts = read_starts(run)
    latest: Mapping[str, Any] = starts[-1] if starts else {}
    base = config.model.name
    on_hub = _HUB_ID.fullmatch(base) is not None
    data = ModelCardData(
        base_model=base if on_hub else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=["gymnast", "reinforcement-learning", "tool-use", config.algorithm.name],
    )
    shape = "merged" if merged else "adapters"
    loader = "AutoModelForCausalLM.from_pretrained" if on_hub else "load_model"
    text = LOADING[shape]
    if not on_hub and not merged:  # it is loaded as the run loaded it
        text = text.replace("import AutoModelForCausalLM, AutoTokenizer", "import AutoTokenizer", 1)
        text = text.replace("base = {loader}", "base, _ = {loader}")
        text = f"from gymnast.agents import load_model\n{text}"
    loading = text.format(place=place, loader=f'{loader}("{base}")')
    what = "The trained model" if merged else "LoRA adapters"
    parts = [
        f"# {_title(place)}",
        f"{what} of a run of [Gymnast](https://pypi.org/project/gymnast-rl/), which trained "
        f"`{base}` by reinforcement learning to act in `{config.environment.named}`.",
        "## How to load it",
        f"```python\n{loading}```",
        "## How it came about",
        "\n".join(f"- {line}" for line in _facts(run, config, latest, best)),
        "## Settings",
        f"```yaml\n{_settings(config)}```",
    ]
    text = "\n\n".join(parts)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n")


def rewards(run: Path) -> tuple[int, float | None, float | None]:
    """How many steps a run took, and the mean rewards of its first and its last evaluation."""
    steps, evaluated = 0, list[float]()
    for line in _lines(run / METRICS):
        steps = max(steps, int(line.get("step", 0)))
        reward = line.get("eval/reward/mean")
        if isinstance(reward, int | float):
            evaluated.append(float(reward))
    return (steps, evaluated[0], evaluated[-1]) if evaluated else (steps, None, None)


def _facts(
    run: Path, config: RunConfig, latest: Mapping[str, Any], best: EvaluatedPolicy | None
) -> Iterator[str]:
    model = latest.get("model") or {}
    revision = model.get("commit") or model.get("sha256")
    yield f"base model: `{config.model.name}`" + (f", revision `{revision}`" if revision else "")
    if config.model.quantization is not None:
        yield (
            f"quantization: the base was held in 4 bits ({config.model.quantization}, double "
            "quantization), and the adapters belong to the base as it is dequantised, which the "
            "merged model contains"
        )
    yield f"environment: `{config.environment.named}`"
    yield f"algorithm: `{config.algorithm.name}`, groups of {config.algorithm.group_size}"
    steps, before, after = rewards(run)
    yield f"steps: {steps}, of {config.trainer.rows_per_step} rows each"
    if before is not None:
        yield f"mean reward on evaluation rows: {before:.3f} before, {after:.3f} after"
    if best is not None:
        yield f"weights: of the best evaluation, {best.when} (mean reward {best.reward:.3f})"
    for place, made in (latest.get("inputs") or {}).items():
        known = made.get("commit") or made.get("sha256")
        yield f"{place}: `{Path(made['name']).name}`" + (f" (`{known}`)" if known else "")
    own, packages = latest.get("gymnast") or {}, latest.get("packages") or {}
    versions = [f"Gymnast {own['version']}"] if "version" in own else []
    if own.get("commit"):
        changed = ", changed" if own.get("dirty") else ""
        versions[-1:] = [f"Gymnast {own.get('version')} (commit `{own['commit']}`{changed})"]
    versions += [f"{name} {packages[name]}" for name in _SHOWN if name in packages]
    if versions:
        yield f"versions: Python {latest.get('python')}, {', '.join(versions)}"


def _settings(config: RunConfig) -> str:
    """The settings that differ from their defaults, but for where files are."""
    given = config.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    chosen = {name: given[name] for name in (*_SETTINGS, "seed") if given.get(name)}
    return yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True, width=100)


def _title(place: str) -> str:
    return place.rstrip("/").rpartition("/")[2] or place


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            read = json.loads(line)
        except ValueError:  # torn by a kill
            continue
        if isinstance(read, dict):
            yield read
