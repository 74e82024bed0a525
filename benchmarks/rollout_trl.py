"""TRL's side: `GRPOTrainer` with the transformers backend, whose samples are forced to a script's.

The trainer is made by its public constructor (`tools=`) and driven by `evaluate()`, which rolls the
evaluation rows out and trains nothing. The rollout inside it is timed: the trainer's `_generate`,
which tokenizes the prompts, generates, parses, runs the tools and generates again until no episode
calls one. Rewards, log-probabilities and the loss come after it and are not charged to TRL; Gymnast
is charged for its rewards and for the log-probabilities of its samples.
"""

import importlib
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from transformers import LogitsProcessor, LogitsProcessorList, PrinterCallback

from rollout_gymnast import Conversation
from rollout_measure import Cost, Meter
from rollout_script import Script, Workload, lookup

MAX_NEW_TOKENS = 8192  # never reached: every turn ends with its stop token


class Force(LogitsProcessor):  # type: ignore[misc]
    """Leaves the script's token as the only choice.

    Args:
        turns: [B, T], each row's turn, padded with the pad token.
        start: Where in the ids the turns begin.
    """

    def __init__(self, turns: torch.Tensor, start: int) -> None:
        self._turns = turns
        self._start = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores [B, V] with one finite entry per row."""
        at = input_ids.shape[1] - self._start
        index = self._turns[:, at : at + 1]
        return torch.full_like(scores, -torch.inf).scatter_(1, index, 0.0)


class TrlSide:
    """Rolls a workload out with TRL.

    Args:
        model: The policy; not shared with another side.
        workload: The episodes to play.
    """

    def __init__(self, model: Any, workload: Workload) -> None:
        self._workload = workload
        self._script = Script(workload)
        self._meter = Meter(model)
        self._cost = Cost()
        self._generate = model.generate
        model.generate = self._forced_generate
        self._trainer = self._make_trainer(model)
        self.conversations: list[Conversation] = []

    def run(self) -> Cost:
        """Roll all episodes out once, and keep their `conversations`."""
        self._script = Script(self._workload)
        self._trainer.evaluate()
        return self._cost

    def _forced_generate(self, **inputs: Any) -> Any:
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        contexts = [row[seen].tolist() for row, seen in zip(ids, mask, strict=True)]
        turns = [self._script.next_turn(context) for context in contexts]
        padded = torch.full(
            (len(turns), max(map(len, turns))), self._workload.tokenizer.pad_token_id
        )
        for row, turn in zip(padded, turns, strict=True):
            row[: len(turn)] = torch.tensor(turn)
        force = Force(padded.to(ids.device), ids.shape[1])
        return self._generate(**inputs, logits_processor=LogitsProcessorList([force]))

    def _timed(self, generate: Callable[..., Any], prompts: Any) -> Any:
        with self._meter.measure() as self._cost:
            found = generate(prompts)
        prompt_ids, completion_ids, tool_mask = found[:3]
        self.conversations = [
            ((*prompt, *completion), (*[0] * len(prompt), *mask))
            for prompt, completion, mask in zip(prompt_ids, completion_ids, tool_mask, strict=True)
        ]
        return found

    def _make_trainer(self, model: Any) -> Any:
        trl = importlib.import_module("trl")
        side = self

        class Timed(trl.GRPOTrainer):  # type: ignore[name-defined,misc]
            def _generate(self, prompts: Any) -> Any:
                return side._timed(super()._generate, prompts)

        workload = self._workload
        rows = Dataset.from_list(
            [{"prompt": [{"role": "user", "content": prompt}]} for prompt in workload.prompts]
        )
        arguments = trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=workload.episodes,
            per_device_eval_batch_size=workload.episodes,
            num_generations=len(workload.turns[0]),
            max_completion_length=MAX_NEW_TOKENS,
            learning_rate=0.0,
            gradient_checkpointing=False,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=model.device.type == "cpu",
        )
        trainer = Timed(
            model=model,
            args=arguments,
            reward_funcs=_no_reward,
            train_dataset=rows,
            eval_dataset=rows,
            processing_class=workload.tokenizer,
            tools=[lookup],
        )
        trainer.remove_callback(PrinterCallback)
        return trainer


def _no_reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)
