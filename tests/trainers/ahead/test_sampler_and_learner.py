"""Runs in which the trained model itself samples, while it is trained: they take turns at it."""

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gymnast.agents import PolicyWeights, TransformersAgent, load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.adapters import adapted_weight, folded
from gymnast.trainers import Trainer
from gymnast.trainers.data.rows import RowSource
from gymnast.types import Completion, Sampling, Trajectory
from model_families import tiny
from runs_ahead import ROWS, TOKENIZER, Keeps, make_trainer

Contexts = list[tuple[list[int], Completion]]
ENGINE = "gymnast-engine"
CLOSE: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}


class Numbered(RowSource):
    """Rows that know their position."""

    def row(self, position: int) -> Mapping[str, Any]:
        return {"position": position}


class Tools(gymnasium.Env[Any, Any]):
    """Two turns with a tool between them; those of row 3 end amid the first update.

    Row 0 waits until they have begun, so that they are under way in the update. The turns of rows 4
    and 5 are long, so that requests are under way, too.
    """

    one_begun, updating, one_ended = threading.Event(), threading.Event(), threading.Event()
    begun: ClassVar[set[int]] = set()
    ended: ClassVar[list[tuple[int, bool]]] = []  # positions, and whether it was in time

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.turn = options["row"]["position"], 0
        self.begun.add(self.position)
        return np.arange(1, 9), self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        if self.turn == 1 and self.position == 0:
            self.one_begun.wait(30)
        if self.turn == 1 and self.position == 3:
            self.one_begun.set()
            in_time = self.updating.wait(30)
            self.ended.append((self.position, in_time))
            self.one_ended.set()
        reward = float((np.asarray(action) % 2).mean())
        return np.arange(5, 8), reward, self.turn == 2, False, self._info

    @property
    def _info(self) -> dict[str, Any]:
        return {"stop_ids": [2], "tokens_left": 4 if self.position <= 3 else 60}


@pytest.fixture(autouse=True)
def fresh_tools() -> Iterator[None]:
    for event in (Tools.one_begun, Tools.updating, Tools.one_ended):
        event.clear()
    Tools.begun.clear()
    Tools.ended.clear()
    yield
    Tools.updating.set()


class Recorded(TransformersAgent):
    """Keeps what it samples, and the weights of every version."""

    def __init__(self, model: Any, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.sampled: Contexts = []
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        completion = await super().generate(context_ids, sampling)
        self.sampled.append((list(context_ids), completion))
        return completion

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        self.weights[version] = copy.deepcopy(weights.model.state_dict())
        super().update_weights(weights, version)


class Guard:
    """Watches who uses a model: the engine's thread, or the one that trains.

    Attributes:
        clashes: What used it while another did.
        engine_passes: How many the engine made.
    """

    def __init__(self, model: Any) -> None:
        self.clashes: list[str] = []
        self.engine_passes = 0
        self.sampling = self.learning = False
        model.register_forward_pre_hook(self._begins)
        model.register_forward_hook(self._ends, always_call=True)
        for module in model.modules():
            module.register_forward_pre_hook(self._computes)

    def watch(self, trainer: Trainer) -> None:
        """Watch a trainer's updates, too."""
        update = trainer.learner.update

        def watched(*args: Any, **settings: Any) -> Any:
            self.learning = True
            if self.sampling:
                self.clashes.append("an update while the engine computes")
            try:
                return update(*args, **settings)
            finally:
                self.learning = False

        trainer.learner.update = watched  # type: ignore[method-assign]

    def _begins(self, *_: Any) -> None:
        if threading.current_thread().name == ENGINE:
            self.engine_passes += 1
            self.sampling = True

    def _ends(self, *_: Any) -> None:
        if threading.current_thread().name == ENGINE:
            self.sampling = False

    def _computes(self, module: Any, *_: Any) -> None:
        is_engine = threading.current_thread().name == ENGINE
        if is_engine and self.learning:
            self.clashes.append(f"the engine in {type(module).__name__} during an update")
        if not is_engine and self.sampling:
            self.clashes.append(f"another thread in {type(module).__name__} beside the engine")


class Overlaps(Guard):
    """Lets the tool of row 3 end within the first update, and sees which rows have begun."""

    begun: set[int] | None = None

    def watch(self, trainer: Trainer) -> None:
        super().watch(trainer)
        update = trainer.learner.update

        def overlapping(*args: Any, **settings: Any) -> Any:
            if self.begun is None:
                self.begun = set(Tools.begun)
                assert not Tools.ended
                Tools.updating.set()
                assert Tools.one_ended.wait(30)
            return update(*args, **settings)

        trainer.learner.update = overlapping  # type: ignore[method-assign]


def plain() -> Any:
    return tiny_model()


def adapted() -> Any:
    return load_model("tiny:", lora={"rank": 4}, tokenizer=TOKENIZER)[0]


def recurrent() -> Any:
    return tiny("qwen3_next")


@torch.no_grad()
def scored(model: Any, context: list[int], ids: list[int]) -> torch.Tensor:
    """The log-probabilities of the tokens that follow a context."""
    logits = model(torch.tensor([context + ids])).logits[0, len(context) - 1 : -1]
    return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(ids)[:, None])[:, 0]


def check_versions(model: Any, agent: Recorded) -> int:
    """Check that tokens are of the versions they say; returns how many requests are of several.

    From a second version on, a request goes on with keys and values of the first.
    """
    scratch, several = copy.deepcopy(model), 0
    for version, weights in agent.weights.items():
        scratch.load_state_dict(weights)
        for context, completion in agent.sampled:
            start, end, first = completion.versions[0]
            assert start == 0 and completion.versions[-1].end == len(completion.ids)
            if first != version:
                continue
            found = scored(scratch, context, completion.ids[:end])
            torch.testing.assert_close(found, torch.tensor(completion.logprobs[:end]), **CLOSE)
            several += len(completion.versions) > 1
    return several


@pytest.mark.parametrize("make", [plain, adapted, recurrent], ids=lambda make: make.__name__)
def test_tools_go_on_while_the_sampling_model_is_trained(make: Any) -> None:
    model = make()
    guard, kept, agent = Overlaps(model), Keeps(), Recorded(model)
    trainer = make_trainer(
        model=model,
        agent=agent,
        environment=lambda: Tools(),
        rows=Numbered(),
        sampling=Sampling(max_new_tokens=60),
        learning_rate=1e-2,
        steps=3,
        observer=kept,
    )
    guard.watch(trainer)
    trainer.train()
    assert guard.begun == set(range(6))  # those of the second step, before the first update
    assert len(Tools.ended) == 4 and all(in_time for _, in_time in Tools.ended)
    assert guard.engine_passes > 0 and not guard.clashes
    assert [metrics["staleness/max"] for metrics in kept.metrics] == [0, 1, 1]
    assert sorted(agent.weights) == [0, 1, 2, 3]
    assert check_versions(model, agent) > 0  # some requests waited for an update
    assert sum(metrics["engine/kept_across_weights"] for metrics in kept.metrics) > 0
    moved = agent.weights[0], agent.weights[3]
    assert any(not torch.equal(weight, moved[1][name]) for name, weight in moved[0].items())


def test_adapters_are_folded_while_the_engine_computes_alone() -> None:
    model = adapted()
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    frozen = {n: w.clone() for n, w in model.named_parameters() if not w.requires_grad}
    agent, scratch = Recorded(model), copy.deepcopy(model)
    others = [module for module in scratch.modules() if hasattr(module, "lora_A")]
    checked: set[int] = set()
    wrong: list[str] = []

    def sampled_from_folded(*_: Any) -> None:
        if threading.current_thread().name != ENGINE or agent.version in checked:
            return
        checked.add(agent.version)
        scratch.load_state_dict(agent.weights[agent.version])
        with folded(scratch):
            for here, there in zip(layers, others, strict=True):
                if not torch.equal(adapted_weight(here), adapted_weight(there)):
                    wrong.append(f"another sum in version {agent.version}")

    model.register_forward_pre_hook(sampled_from_folded)
    trainer = make_trainer(model=model, agent=agent, learning_rate=1e-2)
    update = trainer.learner.update

    def trained_as_they_are(*args: Any, **settings: Any) -> Any:
        now = dict(model.named_parameters())
        if not all(torch.equal(weight, now[name]) for name, weight in frozen.items()):
            wrong.append("an update of folded weights")
        if any(layer.disable_adapters for layer in layers):
            wrong.append("an update without adapters")
        return update(*args, **settings)

    trainer.learner.update = trained_as_they_are  # type: ignore[method-assign]
    trainer.train()
    assert checked == set(range(5)) and not wrong
    now = dict(model.named_parameters())
    assert all(torch.equal(weight, now[name]) for name, weight in frozen.items())
    assert not any(layer.disable_adapters for layer in layers)


class LooksAround(Keeps):
    """Does what observers may do: computes with the model, saves it, evaluates."""

    trainer: Trainer

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.logits: dict[int, torch.Tensor] = {}

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        super().on_step(step, metrics, groups)
        self.trainer.save(self.folder / str(step))
        with torch.no_grad():
            self.logits[step] = self.trainer.model(torch.tensor([[5, 6, 7]])).logits
        if step == 2:
            self.trainer.evaluate(ROWS[:2])


@pytest.mark.parametrize("make", [plain, adapted], ids=lambda make: make.__name__)
def test_what_an_observer_does_with_the_model_is_undisturbed(make: Any, tmp_path: Path) -> None:
    model = make()
    guard, kept, agent = Guard(model), LooksAround(tmp_path), Recorded(model)
    trainer = make_trainer(model=model, agent=agent, observer=kept, learning_rate=1e-2)
    kept.trainer = trainer
    guard.watch(trainer)
    trainer.train()
    assert not guard.clashes
    assert kept.evaluated == [{2}]  # by the new weights, which the agent has by then
    check_versions(model, agent)
    for step, logits in kept.logits.items():
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / str(step))
        with torch.no_grad():
            found = saved(torch.tensor([[5, 6, 7]])).logits
        torch.testing.assert_close(found, logits, **CLOSE)


def test_saved_weights_are_those_of_their_step(tmp_path: Path) -> None:
    model = adapted()
    agent = Recorded(model)
    trainer = make_trainer(
        model=model,
        agent=agent,
        output_dir=tmp_path,
        checkpoint_every_steps=1,
        learning_rate=1e-2,
        eval_rows=ROWS[:3],
        eval_every_steps=1,
    )
    best = trainer.train()["best"]
    scratch = copy.deepcopy(model)
    for folder, version in ((tmp_path / "model", 5), (tmp_path / "best/model", best.step)):
        if not folder.exists():
            assert version == 0
            continue
        scratch.load_state_dict(agent.weights[version])
        saved = AutoModelForCausalLM.from_pretrained(folder)
        found, expected = (scored(each, [5, 6], [7, 8, 9]) for each in (saved, scratch))
        torch.testing.assert_close(found, expected, **CLOSE)


def test_evaluations_leave_training_episodes_under_way() -> None:
    class Evaluated(Keeps):
        def on_evaluation(
            self, step: int, metrics: Mapping[str, float], groups: Sequence[Sequence[Trajectory]]
        ) -> None:
            super().on_evaluation(step, metrics, groups)
            passes.append(guard.engine_passes)

    passes: list[int] = []
    model, kept = tiny_model(), Evaluated()
    guard = Guard(model)
    trainer = make_trainer(
        model=model, agent=None, observer=kept, eval_rows=ROWS[:3], eval_every_steps=1
    )
    guard.watch(trainer)
    trainer.train()
    assert kept.evaluated == [{step} for step in range(6)]
    assert passes == sorted({*passes}) and not guard.clashes
    assert [metrics["staleness/max"] for metrics in kept.metrics] == [0, 1, 1, 1, 1]
