"""TRL's side: the main job by `GRPOTrainer`, as a user of TRL would write it.

Prompts are asserted to be Gymnast's, token by token: their messages are written out in plain text,
and `TEMPLATE` writes calls and results as Gymnast's plain protocol does. Tools are plain functions.
Rewards are Arithmetic's own: the messages of each completion are played through the environment
once more. TRL has one limit on a completion's tokens, tool results included, where Gymnast has one
for each turn; `MAX_COMPLETION` leaves room for several calls.
"""

import asyncio
import importlib
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback

from gymnast.agents import load_model
from gymnast.envs import Environment
from gymnast.envs.rendering.plain_protocol import rewrite
from gymnast.types import Message
from learning_curve import Curve, Evaluation, Step
from learning_job import Job, Row, evaluation_of
from rollout_measure import cpu_seconds

MAX_COMPLETION = 96
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' -%}
<tool_response>
{{ message.content }}
</tool_response>
{%- else -%}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


def run(job: Job) -> Curve:
    """Train, evaluating before and after with Gymnast's evaluation."""
    trl = importlib.import_module("trl")
    peft = importlib.import_module("peft")
    config, task = job.config, job.task
    model, tokenizer = load_model(config.model.name, dtype=config.model.dtype)
    before = evaluation_of(job, model, tokenizer)
    plain = tokenizer.chat_template
    prompts = [prompt_messages(task.make_env(), row, tokenizer) for row in job.rows]
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = importlib.import_module("trl.chat_template_utils").qwen3_template
    check_prompts(job, prompts, tokenizer)
    trainer_settings, lora, max_turns = config.trainer, config.model.lora, job.max_turns
    assert lora is not None
    size = config.algorithm.group_size
    watch = Watch()
    trainer = trl.GRPOTrainer(
        model=model,
        args=trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            seed=config.seed,
            max_steps=trainer_settings.steps,
            per_device_train_batch_size=size,  # one group
            gradient_accumulation_steps=trainer_settings.rows_per_step,
            num_generations=size,
            max_completion_length=MAX_COMPLETION,
            max_tool_calling_iterations=max_turns - 1,
            temperature=config.sampling.temperature,
            learning_rate=trainer_settings.learning_rate,
            lr_scheduler_type="constant",
            weight_decay=trainer_settings.weight_decay,
            max_grad_norm=trainer_settings.max_grad_norm,
            bf16=True,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            save_strategy="no",
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        reward_funcs=Rescore(task.make_env),
        train_dataset=Dataset.from_list(
            [{"prompt": p, "row": dict(row)} for p, row in zip(prompts, job.rows, strict=True)]
        ),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha or 2 * lora.rank,
            lora_dropout=lora.dropout,
            target_modules=lora.target,
            task_type="CAUSAL_LM",
        ),
        tools=[add, multiply],
        callbacks=[watch],
    )
    trainer.train()
    tokenizer.chat_template, tokenizer.response_template = plain, None
    merged = trainer.model.merge_and_unload().to(torch.bfloat16).requires_grad_()
    after, last = evaluation_of(job, merged, tokenizer), watch.steps[-1]
    evaluations = (
        Evaluation(0, 0.0, 0.0, 0, before),
        Evaluation(len(watch.steps), last.wall_s, last.cpu_s, 0, after),
    )
    return Curve(tuple(watch.steps), evaluations)


class Watch(TrainerCallback):  # type: ignore[misc]
    """Records the reward and the time of every step, from TRL's own logs."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._started = (0.0, 0.0)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self._started = time.perf_counter(), cpu_seconds()

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        """Record a step that is over."""
        if "reward" in logs:
            wall, cpu = self._started
            wall_s, cpu_s = time.perf_counter() - wall, cpu_seconds() - cpu
            self.steps.append(Step(float(logs["reward"]), wall_s, cpu_s))
            reward = self.steps[-1].reward
            print(f"step {len(self.steps)}: reward {reward:.3f}, {wall_s:.0f} s", flush=True)


class Rescore:
    """A reward function for TRL: Arithmetic's own reward for the messages of each completion."""

    __name__ = "arithmetic"

    def __init__(self, make_env: Any) -> None:
        self._environment: Environment = make_env()

    def __call__(self, completions: list[Any], row: list[Row], **_: Any) -> list[float]:
        """The reward of each completion."""
        return asyncio.run(self._all(completions, row))

    async def _all(self, completions: list[Any], rows: list[Row]) -> list[float]:
        pairs = zip(completions, rows, strict=True)
        return [await self._one(messages, row) for messages, row in pairs]

    async def _one(self, messages: list[Message], row: Row) -> float:
        await self._environment.areset(options={"row": row})
        total = 0.0
        for message in messages:
            if message["role"] != "assistant":
                continue
            _, reward, terminated, truncated, _ = await self._environment.act(message)
            total += reward
            if terminated or truncated:
                return total
        # The completion ended with a call that was not played: the turn limit, or no room.
        _, reward, *_ = await self._environment.act({"role": "assistant", "content": ""})
        return total + reward


def prompt_messages(environment: Environment, row: Row, tokenizer: Any) -> list[dict[str, Any]]:
    """The messages, in plain text, that Gymnast begins an episode with."""
    environment.reset(options={"row": row})
    return rewrite(environment.messages, environment.tools, takes_system=True)


def check_prompts(job: Job, prompts: list[list[dict[str, Any]]], tokenizer: Any) -> None:
    """Check that both sides begin with the same tokens.

    Raises:
        AssertionError: They do not.
    """
    environment = job.task.make_env()
    for row, messages in zip(job.rows, prompts, strict=True):
        ours, _ = environment.reset(options={"row": row})
        theirs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        assert ours.tolist() == theirs, "the prompts of Gymnast and TRL differ"
