"""Algorithms by name: what each preset is, what a user adds, and that each one trains."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gymnast.errors import ConfigError
from gymnast.trainers import Kl, Teacher, make_algorithm
from gymnast.trainers.algorithms.advantages import ESTIMATORS, RewardBatch
from gymnast.trainers.algorithms.aggregations import AGGREGATIONS
from gymnast.trainers.algorithms.algorithm import PRESETS, names
from gymnast.trainers.algorithms.losses import LOSSES
from gymnast.trainers.algorithms.registry import Part
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import load_config
from gymnast.types import StopReason

pytestmark = pytest.mark.usefixtures("own_parts")

BATCH = RewardBatch(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]), [[0.0], [1.0]])
OWN = """\
from gymnast.trainers.algorithms.advantages import per_group
from gymnast.trainers.algorithms.aggregations import Weights
from gymnast.trainers.algorithms.losses import TokenLosses, sequence_loss
import torch

@per_group
def signs(rewards, *, scale: float = 1.0):
    return scale * torch.sign(rewards - rewards.mean())

def undecorated(batch):
    return [torch.full((len(turns),), 7.0) for turns in batch.turn_rewards]

@sequence_loss
def squares(logprobs, sampled_logprobs, advantages, sequences, *, power: int = 2):
    losses = advantages * (logprobs - sampled_logprobs) ** power
    return TokenLosses(losses, losses.detach(), losses.detach() != losses.detach())

def summed(lengths):
    return Weights(torch.ones(len(lengths)), 1.0)
"""


def loss_of_two(algorithm: Any) -> Any:
    ratio = torch.tensor([3.0, 0.1])
    sequences = torch.tensor([0, 0])
    return algorithm.loss(ratio.log(), torch.zeros(2), torch.tensor([1.0, -1.0]), sequences).losses


# --- By name


def test_a_name_is_a_preset_or_an_estimator_with_the_clipped_loss_and_the_token_mean() -> None:
    torch.testing.assert_close(loss_of_two(make_algorithm("turn_level")), torch.tensor([-1.2, 0.8]))
    lengths = torch.tensor([3, 5])
    assert make_algorithm("turn_level").aggregation(lengths).normaliser == 8
    assert {*PRESETS} < {*names()} and "turn_level" in names()


def test_presets_are_as_published() -> None:
    lengths = torch.tensor([3, 5])
    torch.testing.assert_close(loss_of_two(make_algorithm("dapo")), torch.tensor([-1.28, 0.8]))
    masked = make_algorithm("dapo").masked_stop_reasons
    assert masked == {StopReason.max_tokens, StopReason.context}
    assert make_algorithm("dr_grpo").aggregation(lengths).normaliser == 2 * 512
    assert make_algorithm("gspo").aggregation(lengths).normaliser == 2
    s = (3.0 * 0.1) ** 0.5
    torch.testing.assert_close(loss_of_two(make_algorithm("gspo")), torch.tensor([-s, (1 - 3e-4)]))


def test_parts_and_options_of_a_preset_may_be_changed() -> None:
    algorithm = make_algorithm(
        "dapo", clip_low=0.5, clip_high=1.5, masked_stop_reasons=[], aggregation="sequence_mean"
    )
    torch.testing.assert_close(loss_of_two(algorithm), torch.tensor([-2.5, 0.5]))
    assert algorithm.masked_stop_reasons == frozenset()
    assert algorithm.aggregation(torch.tensor([3, 5])).normaliser == 2
    torch.testing.assert_close(
        loss_of_two(make_algorithm("dapo", loss="reinforce")),
        torch.tensor([-math.log(3.0), math.log(0.1)]),
    )  # the preset's clips belong to a loss that is not used


def test_functions_of_the_users_are_parts_with_options(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    algorithm = make_algorithm(
        f"{file}:signs", loss=f"{file}:squares", aggregation=f"{file}:summed", scale=3.0, power=1
    )
    assert torch.cat(algorithm.estimator(BATCH)).tolist() == [-3.0, 3.0]
    assert loss_of_two(algorithm).tolist() == pytest.approx([math.log(3.0), -math.log(0.1)])
    assert algorithm.aggregation(torch.tensor([3])).normaliser == 1.0
    plain = make_algorithm(f"{file}:undecorated")
    assert torch.cat(plain.estimator(BATCH)).tolist() == [7.0, 7.0]
    with pytest.raises(ConfigError, match=r"algorithm.scael: unknown key; did you mean scale\?"):
        make_algorithm(f"{file}:signs", scael=3.0)
    with pytest.raises(ConfigError, match=r"algorithm.scale: must be a number, got 'much'"):
        make_algorithm(f"{file}:signs", scale="much")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "ppo"},
            "algorithm.name: there is no algorithm 'ppo'. There are: cispo, .*turn_level.* One of ",
        ),
        ({"loss": "clip"}, "algorithm.loss: there is no loss 'clip'. Did you mean 'clipped'?"),
        ({"gamma": 0.9}, "algorithm.gamma: unknown key; the keys are clip_low, clip_high"),
        ({"name": "turn_level", "gamma": 2}, "algorithm.gamma: must be <= 1, got 2"),
        ({"epochs": 0}, "epochs: must be >= 1, got 0"),
        ({"importance_cap": 0.0}, "importance_cap: must be > 0, got 0"),
        (
            {"importance_bounds": [2.0, 0.5]},
            r"importance_bounds: must be two numbers .*, got \[2.0, 0.5\]",
        ),
        ({"importance_bounds": [0.5]}, r"importance_bounds: must be two numbers"),
        ({"importance_level": "sequence"}, "importance_level: is sequence, and nothing is weigh"),
        ({"importance_level": "group"}, "importance_level: must be "),
        (
            {"importance_bounds": [0.5, 2.0], "importance_cap": 3.0},
            "importance_cap: must be below the upper of importance_bounds, 2, got 3",
        ),
        (
            {"importance_bounds": [0.5, 2.0], "old_logprobs": "engine"},
            "old_logprobs: must be trainer with importance_bounds, got engine",
        ),
        ({"name": "gdpo", "weights": [1]}, "algorithm.weights: must be a mapping"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_algorithm(**settings)


def test_only_estimators_that_compare_members_need_groups_of_two(tmp_path: Path) -> None:
    allowed = []
    for name in names():
        teacher = Teacher("base") if name == "distillation" else None
        try:
            make_algorithm(name, teacher=teacher).check_group_size(1)
            allowed.append(name)
        except ConfigError as error:
            assert "group_size: must be >= 2, got 1: the estimator compares" in str(error)
    assert allowed == ["distillation", "reinforce_pp", "reinforce_pp_tokens", "rejection"]
    file = tmp_path / "own.py"
    file.write_text(OWN)
    make_algorithm(f"{file}:undecorated").check_group_size(1)
    with pytest.raises(ConfigError, match="must be >= 2"):
        make_algorithm(f"{file}:signs").check_group_size(1)  # a kernel of one group
    with pytest.raises(ConfigError, match="must be >= 1, got 0"):
        make_algorithm(f"{file}:undecorated").check_group_size(0)


def test_a_function_of_the_users_does_not_take_a_name_that_there_is(tmp_path: Path) -> None:
    file = tmp_path / "same.py"
    file.write_text(OWN.replace("def signs", "def grpo"))
    theirs = make_algorithm(f"{file}:grpo", scale=3.0)
    assert torch.cat(theirs.estimator(BATCH)).tolist() == [-3.0, 3.0]
    ours = make_algorithm("grpo")
    assert torch.cat(ours.estimator(BATCH)).abs().max() < 1.0


def test_the_documented_example_is_an_algorithm(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    parts = [block for block in blocks if "def ranks" in block or "def reward_to_go" in block]
    file = tmp_path / "documented.py"
    file.write_text("\n".join(parts))
    algorithm = make_algorithm(f"{file}:ranks", loss=f"{file}:squared", power=2.0, strength=0.0)
    assert torch.cat(algorithm.estimator(BATCH)).tolist() == [-0.25, 0.25]
    assert loss_of_two(algorithm).tolist() == pytest.approx([-3.0, 0.1])
    by_token = make_algorithm(f"{file}:reward_to_go", gamma=0.5, expected=0.0)
    batch = replace(BATCH, token_rewards=[torch.tensor([0.0, 1.0, 2.0]), torch.tensor([4.0])])
    assert [values.tolist() for values in by_token.estimator(batch)] == [[1.0, 2.0, 2.0], [4.0]]


def test_every_name_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
    parts: list[Part[Any]] = [*ESTIMATORS.values(), *LOSSES.values(), *AGGREGATIONS.values()]
    own = [p.function for p in parts if p.function.__module__.startswith("gymnast.trainers")]
    for name in [*PRESETS, *(function.__name__ for function in own)]:
        assert f"| `{name}` |" in page


# --- Each one trains


EXTRAS: dict[str, dict[str, Any]] = {name: {"name": name} for name in names()} | {
    # Every episode of an untrained model is cut by its length, which is what DAPO masks.
    "dapo": {"name": "dapo", "masked_stop_reasons": ["context"]},
    # No untrained model reaches a reward of 1.
    "rejection": {"name": "rejection", "threshold": -9.0, "group_size": 1},
    "distillation": {"name": "distillation", "teacher": {"model": "base"}, "group_size": 1},
    "two_sided": {"loss": "two_sided", "clip_bound": 2.0},
    "kl in the loss": {"kl": {"coefficient": 0.01}},
    "kl in the reward": {"kl": {"coefficient": 0.01, "estimator": "k1", "place": "reward"}},
    "entropy": {"entropy_bonus": 0.01},
    "importance": {"importance_cap": 2.0, "epochs": 2},
    "importance by sequence": {"importance_bounds": [0.5, 2.0], "importance_level": "sequence"},
    "minibatches": {"epochs": 2, "minibatches": 2},
    "masked": {"masked_stop_reasons": ["answered"]},
    "groups of one": {
        "name": "reinforce_pp",
        "group_size": 1,
        "kl": {"coefficient": 0.01, "estimator": "k1", "place": "reward"},
    },
}

STATED = """\
from gymnast.envs.builtin.arithmetic import Arithmetic

class Stated(Arithmetic):
    def turn_state(self):
        return len(self.episode.turns)

    def hint(self, row):
        return [{"role": "user", "content": f"Say {row['answer']}."}]
"""


@pytest.mark.parametrize("algorithm", EXTRAS.values(), ids=list(EXTRAS))
def test_every_algorithm_trains_from_a_yaml(algorithm: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "brief.py").write_text(
        "def brief(trajectory):\n    return -trajectory.ids[-2] / 1000\n"
    )
    (tmp_path / "places.py").write_text(STATED)
    stated = algorithm.get("name") in ("gigpo", "state_baseline", "distillation")
    environment = f"{tmp_path / 'places.py'}:Stated" if stated else "gymnast/Arithmetic-v0"
    run = tmp_path / "run.yaml"
    settings = {
        "model": {"name": "tiny:"},
        "environment": {"id": environment, "max_turns": 2},
        "algorithm": {"group_size": 3, **algorithm},
        "rewards": [{"function": f"{tmp_path / 'brief.py'}:brief", "weight": 0.5}],
        "sampling": {"max_new_tokens": 6},
        "trainer": {"steps": 2, "rows_per_step": 2, "learning_rate": 1e-3},
        "output_dir": str(tmp_path / "run"),
    }
    run.write_text(yaml.safe_dump(settings))
    trainer = build_trainer(load_config(run))
    before = [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    for line in lines:
        assert math.isfinite(line["loss"]) and line["updates/skipped"] == 0
        assert line["reward_parts/brief"] < 0
        assert line["grad_norm"] > 0
    after = list(trainer.model.parameters())
    assert not all(map(torch.equal, before, after))
    assert load_config(tmp_path / "run/config.yaml") == load_config(run)


def test_a_divergence_needs_a_place_and_a_kind_that_there_are() -> None:
    wrong: list[tuple[Any, ...]] = [(0.0,), (0.1, "k4"), (0.1, "k1", "advantage")]
    for settings in wrong:
        with pytest.raises(ConfigError, match=r"kl.*must be"):
            Kl(*settings)
    algorithm = make_algorithm("grpo", kl=Kl(0.1, "k1", "reward"))
    assert algorithm.kl_in("reward") is algorithm.kl and algorithm.kl_in("loss") is None
    assert not algorithm.all_tokens_train
    assert make_algorithm("grpo", kl=Kl(0.1)).all_tokens_train
