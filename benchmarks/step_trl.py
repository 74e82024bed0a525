"""TRL's side of `step.py`: the tool loop of `GRPOTrainer`, from one generation to the next.

The trainer is made by its public constructor and driven by `evaluate()`, which is left once the
episodes are played. In place of generating it is given the next turn; what it does from then until
it asks for another is its step: it reads the ids with `parse_response`, calls the tool (it checks
no arguments), renders a small conversation twice to find the ids of the result, and joins ids and
masks of all episodes of the batch.
"""

import contextlib
import importlib
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback

from gymnast.agents.loading.tiny import tiny_model
from step_calls import CALLS, RESULT_TOKENS, TURN_TOKENS, Answers, Spent, Workload

AT_ONCE = 16


def play(workload: Workload) -> Sequence[Spent]:
    """Play all episodes one by one, then in batches."""
    return [
        _Side(workload, 1).spent("TRL"),
        _Side(workload, AT_ONCE).spent(f"TRL, {AT_ONCE} at once"),
    ]


class _Played(Exception):
    """The episodes are over, and no rewards or log-probabilities are wanted."""


class _Side:
    def __init__(self, workload: Workload, at_once: int) -> None:
        self._workload, self._at_once = workload, at_once
        self._tokenizer = AutoTokenizer.from_pretrained(workload.tokenizer)
        self._wall_ms: list[float] = []
        self._cpu_ms: list[float] = []
        self._written = 0
        self._wall_ns = self._cpu_ns = 0
        self._trainer = self._made()

    def spent(self, name: str) -> Spent:
        """Play all episodes; the steps of a batch are divided by its size."""
        answers = [Answers(self._workload) for _ in range(self._at_once)]
        read = 0
        for first in range(0, len(self._workload.turns) - self._at_once + 1, self._at_once):
            self._begin(first, answers)
            with contextlib.suppress(_Played):
                self._trainer.evaluate()
            for episode in range(first, first + self._at_once):
                read += sum(map(len, self._workload.turns[episode][:-1]))
        steps = len(self._wall_ms) * self._at_once
        assert steps, "TRL took no step"
        return Spent(name, self._wall_ms, self._cpu_ms, read / steps, self._written / steps)

    def _begin(self, first: int, answers: list[Answers]) -> None:
        for number, one in enumerate(answers):
            one.begin(first + number)
        self._order = answers
        self._calls = 0
        self._turn = 0
        self._first = first
        self._lengths: list[int] = []

    def note(self, title: str, text: str, importance: int) -> str:
        """Answer the next call: each turn, TRL goes through the episodes in their order."""
        one = self._order[self._calls % self._at_once]
        self._calls += 1
        return one.answer(title=title, text=text, importance=importance)

    def next_turns(self, prompt_ids: Sequence[Sequence[int]]) -> list[list[int]]:
        """What is sampled after the contexts; the time since the last turn was a step."""
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        turns = [list(self._workload.turns[self._first + i][self._turn])
                 for i in range(self._at_once)]  # fmt: skip
        assert len(prompt_ids) == self._at_once
        if self._turn:
            self._wall_ms.append((wall_ns - self._wall_ns) / 1e6 / self._at_once)
            self._cpu_ms.append((cpu_ns - self._cpu_ns) / 1e6 / self._at_once)
            self._written += sum(map(len, prompt_ids)) - sum(self._lengths)
        self._lengths = [len(a) + len(b) for a, b in zip(prompt_ids, turns, strict=True)]
        self._turn += 1
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.perf_counter_ns()
        return turns

    def _made(self) -> Any:
        trl = importlib.import_module("trl")
        side = self

        class Scripted(trl.GRPOTrainer):  # type: ignore[name-defined,misc]
            def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
                return side.next_turns(prompt_ids), None

            def _generate(self, prompts: Any) -> Any:
                super()._generate(prompts)
                raise _Played

        def note(title: str, text: str, importance: int):  # type: ignore[no-untyped-def]
            """Write a note down.

            Args:
                title: What it is about.
                text: The note.
                importance: From 1 to 5.
            """
            return side.note(title, text, importance)

        rows = [{"prompt": [{"role": "user", "content": self._workload.prompt}]}]
        longest = CALLS * (TURN_TOKENS + 2 * RESULT_TOKENS) + len(self._workload.prompt)
        arguments = trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=AT_ONCE,
            per_device_eval_batch_size=self._at_once,
            num_generations=AT_ONCE,
            num_generations_eval=self._at_once,
            max_completion_length=longest,
            gradient_checkpointing=False,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        model = tiny_model(len(self._tokenizer), max_position_embeddings=2 * longest)
        trainer = Scripted(
            model=model,
            args=arguments,
            reward_funcs=_no_reward,
            train_dataset=Dataset.from_list(rows),
            eval_dataset=Dataset.from_list(rows),
            processing_class=self._tokenizer,
            tools=[note],
        )
        trainer.remove_callback(PrinterCallback)
        return trainer


def _no_reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)
