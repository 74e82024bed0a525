"""A YAML with several environments: composed, mixed, and wrapped."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from gymnast.agents.loading.load import load_tokenizer
from gymnast.envs import Environment, Mixture, tool
from gymnast.errors import ConfigError, DataError, UnknownEnvironment, UserCodeError
from gymnast.sandboxes import SandboxSpec
from gymnast.trainers import Trainer
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import parse_config
from gymnast.trainers.config.task import RunTask, prepare_task

SMALL = {"id": "gymnast/Arithmetic-v0", "weight": 3, "name": "small", "max_operand": 9}
LARGE = {"id": "gymnast/Arithmetic-v0", "name": "large", "min_operand": 100, "max_operand": 999}
MIXED: dict[str, Any] = {"mixture": [SMALL, LARGE], "max_turns": 2, "context_length": 512}


class Told(Environment):
    """Is rewarded for nothing."""

    def reward(self, episode: Any) -> float:
        return 0.0


class Boxed(Environment):
    """Is rewarded by what its row has, and says how large its box is."""

    sandbox_spec = SandboxSpec()

    def reward(self, episode: Any) -> float:
        return float(self.row["answer"])

    def metrics(self, episode: Any) -> dict[str, float]:
        return {"memory": float(self.box_settings.spec.memory_bytes)}

    @tool
    def look(self) -> str:
        """Look."""
        return "seen"


class Notes(Environment):
    """Brings a tool."""

    def setup(self, row: Any) -> None:
        self.lines: list[str] = []

    @tool
    def note(self, text: str) -> int:
        """Note."""
        self.lines.append(text)
        return len(self.lines)


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """Rewards twice as much, and some more."""

    def __init__(self, env: Any, more: float = 0.0) -> None:
        super().__init__(env)
        self.more = more

    def reward(self, reward: Any) -> float:
        return float(2 * reward + self.more)


class Floats(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Makes floats of token ids."""

    def observation(self, observation: Any) -> Any:
        return observation / 2


class Words(gymnasium.RewardWrapper[Any, Any]):
    """Gives words for rewards."""

    def reward(self, reward: Any) -> Any:
        return "much"


class Raising(gymnasium.RewardWrapper[Any, Any]):
    """Raises."""

    def reward(self, reward: Any) -> Any:
        raise KeyError("x")


def less_one(reward: float) -> float:
    return reward - 1.0


def here(cls: str, **settings: Any) -> dict[str, Any]:
    return {"id": f"{__file__}:{cls}", **settings}


def config_of(**sections: Any) -> Any:
    settings: dict[str, Any] = {
        "model": {"name": "tiny:"},
        "environment": MIXED,
        "evaluation": {"rows": 8},
        "seed": 4,
    }
    return parse_config(settings | sections)


def prepare(**sections: Any) -> RunTask:
    return prepare_task(config_of(**sections), load_tokenizer("tiny:"), 2048)


def names(rows: Any) -> Counter[str]:
    return Counter(row["environment"] for row in rows)


@pytest.fixture
def rows_file(tmp_path: Path) -> str:
    rows = [{"q": f"{n}?", "kind": "told" if n % 4 else "sum", "answer": n} for n in range(24)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


# Mixtures


def test_each_environment_has_its_settings_its_rows_and_its_share() -> None:
    task = prepare()
    env: Any = task.make_env()
    assert isinstance(env, Mixture) and env.weights == {"small": 3.0, "large": 1.0}
    assert {member.max_turns for member in env.members.values()} == {2}
    assert len({id(member.renderer) for member in env.members.values()}) == 1
    assert names(task.evaluation_rows) == {"small": 6, "large": 2}
    rows = task.training_rows.batch(0, 128)
    assert names(rows) == pytest.approx({"small": 96, "large": 32}, abs=2)
    assert prepare().training_rows.batch(3, 8) == task.training_rows.batch(3, 8)


def test_no_evaluation_row_of_any_environment_is_trained_on(rows_file: str) -> None:
    own = {"data": rows_file, "columns": {"prompt": "q"}}
    mixed = {"mixture": [here("Told", name="a", **own), here("Told", name="b", **own)]}
    task = prepare(environment=mixed)
    held_out = {row["prompt"] for row in task.evaluation_rows}
    assert not held_out & {row["prompt"] for row in task.training_rows.batch(0, 200)}


def test_rows_of_one_dataset_say_which_environment_plays_them(rows_file: str) -> None:
    mixed = {"mixture": [here("Told", name="told"), {"id": "gymnast/Arithmetic-v0", "name": "sum"}]}
    limits = "{max_turns: answer}"
    columns = {"prompt": "q", "answer": "to_string(answer)", "environment": "kind"}
    data = {"train": rows_file, "columns": columns}
    task = prepare(environment=mixed, data=data, evaluation={"rows": 4})
    assert names(task.training_rows.batch(0, 20)) + names(task.evaluation_rows) == Counter(
        told=18, sum=6
    )
    weighted = {"mixture": [one | {"weight": 1} for one in mixed["mixture"]]}
    task = prepare(environment=weighted, data=data, evaluation={"rows": 4})
    assert names(task.training_rows.batch(0, 128)) == pytest.approx({"told": 64, "sum": 64}, abs=2)
    with pytest.raises(DataError, match=r"the row's 'limits': max_turns must be .* got 0"):
        prepare(environment=mixed, data=data | {"columns": columns | {"limits": limits}})
    with pytest.raises(DataError, match=r"the row's 'environment' is 0, .* It has: told, sum"):
        prepare(environment=mixed, data=data | {"columns": columns | {"environment": "answer"}})
    with pytest.raises(DataError, match=r"the row has no 'environment'"):
        prepare(environment=mixed, data={"train": rows_file, "columns": {"prompt": "q"}})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (MIXED | {"mixture": [SMALL, SMALL]}, "environment.mixture: two environments have the na"),
        (MIXED | {"id": "x"}, "environment.id: cannot be set beside mixture"),
        (MIXED | {"mixture": [{"weight": 1}]}, "environment.mixture.0.id: is required"),
        (MIXED | {"mixture": [SMALL | {"weight": 0}]}, "environment.mixture.0.weight: must be >"),
        (
            MIXED | {"mixture": [SMALL | {"max_operant": 1}]},
            "environment.mixture.0: Arithmetic has",
        ),
        (MIXED | {"max_operant": 1}, "environment.mixture.0: Arithmetic has no setting"),
        (
            {"mixture": [here("Told")]},
            "environment.mixture.0.data: is required: Told makes no rows",
        ),
        (MIXED | {"context_length": 4096}, "environment.mixture.0.context_length: must be <= 2048"),
        (MIXED | {"mixture": {"a": 1}}, "environment.mixture: must be a list"),
        ({"compose": [SMALL["id"]]}, "environment.compose: got Arithmetic alone"),
        (MIXED | {"wrappers": ["TimeLimt"]}, r"environment.wrappers.0.id: there is no wrapper"),
        (
            MIXED | {"wrappers": ["TimeLimit"]},
            r"environment.wrappers.0: TimeLimit cannot be made with .* It takes: max_episode_steps",
        ),
        (
            MIXED | {"wrappers": ["NormalizeReward"]},
            "environment.wrappers.0.id: NormalizeReward .* cannot wrap .* there are: ClipReward",
        ),
        (MIXED | {"wrappers": ["vector"]}, "environment.wrappers.0.id: vector of gymnasium.wrap"),
        (
            MIXED | {"wrappers": [{"id": "TransformReward", "func": "halve"}]},
            "environment.wrappers.0.func: there is no function 'halve'",
        ),
        (
            MIXED | {"wrappers": [here("Floats")]},
            r"environment.wrappers: an observation is array\(\[.* must leave token ids as they are",
        ),
        (MIXED | {"wrappers": [here("Words")]}, "environment.wrappers: a reward is 'much' after"),
        (
            MIXED | {"mixture": [SMALL, {"mixture": [LARGE]}]},
            "environment.mixture.1.mixture: cannot be set here; list the environments of both",
        ),
        (
            MIXED | {"mixture": [SMALL | {"wrappers": ["TimeLimit"]}]},
            "environment.mixture.0.wrappers: cannot be set here; those of environment.wrappers",
        ),
        (MIXED | {"mixture": ["gymnast.envs:Mixture"]}, "environment.mixture.0.id: is gymnast.en"),
        (MIXED | {"mixture": [SMALL | {"weigth": 1}]}, ".* no setting 'weigth'; did you mean weig"),
        (
            MIXED | {"mixture": [SMALL | {"columns": {"prompt": "q"}}]},
            "environment.mixture.0.columns: are made of the rows of environment.mixture.0.data, w",
        ),
        ({}, "environment.id: is required, or else compose or mixture"),
    ],
)
def test_errors_name_the_key(environment: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        prepare(environment=environment)


def test_each_row_has_its_environment_tools_limits_reward_and_box(tmp_path: Path) -> None:
    mib = 2**20
    large, small = ({"backend": "local", "memory_bytes": n * mib} for n in (512, 256))
    mixed = [
        here("Boxed", name="large"),
        here("Boxed", name="small", sandbox=small),
        here("Told", name="told", max_turns=3),
    ]
    rows = [
        {"q": "a", "meta": {"kind": "large", "may": [], "turns": 1}, "answer": 2},
        {"q": "b", "meta": {"kind": "small", "may": ["look"]}, "answer": 5},
        {"q": "c", "meta": {"kind": "told"}, "answer": 7},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    columns = {
        "prompt": "q",
        "environment": "meta.kind",
        "tools": "meta.may",
        "limits": "{max_turns: meta.turns}",
    }
    task = prepare(
        environment={"mixture": mixed, "sandbox": large},
        data={"train": str(path), "columns": columns},
        evaluation={"rows": 0},
    )
    env: Any = task.make_env()
    seen = {}
    for row in task.training_rows.batch(0, 3):
        _, info = env.reset(seed=0, options={"row": row})
        names = [each["function"]["name"] for each in env.tools]
        most = env.members[env.playing]._episode_runner.limit("max_turns")
        *_, reward, _, _, info = env.step(info["stop_ids"][:1])
        seen[env.playing] = (names, most, reward, info["metrics"].get("memory"))
    env.close()
    assert seen == {
        "large": ([], 1, 2.0, 512.0 * mib),
        "small": (["look"], 10, 5.0, 256.0 * mib),
        "told": ([], 3, 0.0, None),
    }


def test_an_unknown_environment_is_named_by_its_place() -> None:
    with pytest.raises(UnknownEnvironment, match=r"^environment\.mixture\.1\.id: there is no"):
        prepare(environment=MIXED | {"mixture": [SMALL, "gymnast/Arithmetik-v0"]})
    with pytest.raises(UnknownEnvironment, match=r"^environment\.compose: there is no env"):
        prepare(environment={"compose": [SMALL["id"], "gymnast/Sqll-v0"]})


def test_a_wrapper_that_raises_is_named_before_a_model_is_loaded() -> None:
    with pytest.raises(UserCodeError, match=r"^environment\.wrappers: in an episode, KeyError: 'x"):
        prepare(environment=MIXED | {"wrappers": [here("Raising")]})


def test_further_environments_have_neither_mixtures_nor_wrappers() -> None:
    for key in ("mixture", "wrappers"):
        further = {"id": SMALL["id"], key: [SMALL["id"]]}
        with pytest.raises(ConfigError, match=rf"environments\.x\.{key}: cannot be set here; "):
            prepare(evaluation={"rows": 4, "environments": {"x": further}})


def test_an_evaluation_has_a_row_of_each_and_leaves_some_to_train_on(rows_file: str) -> None:
    with pytest.raises(ConfigError, match=r"^evaluation\.rows: must be >= 2"):
        prepare(evaluation={"rows": 1})
    told = here("Told", data=rows_file, columns={"prompt": "q"}, weight=3)
    with pytest.raises(DataError, match=r"mixture\.0\.data: has 24 rows, .* weights 30 of eval"):
        prepare(environment={"mixture": [told, SMALL | {"weight": 1}]}, evaluation={"rows": 40})


# Compositions and wrappers


def test_composed_classes_are_one_environment() -> None:
    composed = {"compose": ["gymnast/Arithmetic-v0", f"{__file__}:Notes"], "max_operand": 9}
    env: Any = prepare(environment=composed).make_env()
    assert [each["function"]["name"] for each in env.tools][-1] == "note"
    mixed = MIXED | {"mixture": [SMALL, composed]}
    env = prepare(environment=mixed).make_env()
    assert list(env.members) == ["small", "ArithmeticWithNotes"]


def test_wrappers_wrap_in_their_order() -> None:
    doubled = here("Doubled", more=1.0)
    wrapped = MIXED | {"wrappers": [doubled, {"id": "TimeLimit", "max_episode_steps": 3}]}
    task = prepare(environment=wrapped)
    env: Any = task.make_env()
    assert [type(each).__name__ for each in (env, env.env)] == ["TimeLimit", "Doubled"]
    _, info = env.reset(seed=0, options={"row": task.training_rows.row(0)})
    *_, reward, terminated, _, _ = env.step(info["stop_ids"][:1])
    assert (reward, terminated) == (1.0, True)  # 2 * 0 + 1


# A whole run


def trained(folder: Path, steps: int, *, resume: bool = False, **sections: Any) -> Trainer:
    config = config_of(
        algorithm={"group_size": 2},
        sampling={"max_new_tokens": 4},
        trainer={"steps": steps, "rows_per_step": 3, "learning_rate": 1e-3},
        evaluation={"rows": 2},
        deterministic=True,
        output_dir=str(folder),
        **sections,
    )
    trainer = build_trainer(config, resume=resume)
    trainer.train(resume=resume)
    return trainer


def metrics_of(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clocks = ("time", "per_s", "perf/", "seconds", "memory")
    return [{k: v for k, v in line.items() if not any(c in k for c in clocks)} for line in lines]


def test_a_run_of_a_mixture_that_is_resumed_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 3)
    trained(tmp_path / "parts", 2)
    resumed = trained(tmp_path / "parts", 3, resume=True)
    after = [line for line in metrics_of(tmp_path / "whole") if line["step"] > 2]
    assert after == [line for line in metrics_of(tmp_path / "parts") if line["step"] > 2]
    weights = resumed.model.state_dict()
    assert all((weights[name] == w).all() for name, w in whole.model.state_dict().items())
    steps = [line for line in after if "environments/small/reward/mean" in line]
    assert steps and "eval/by/environment=small/reward/mean" in metrics_of(tmp_path / "whole")[0]
    for line in steps:
        counts = [v for k, v in line.items() if k.endswith("/episodes/finished")]
        assert sum(counts) == line["episodes/finished"] == 6


def test_what_is_trained_and_evaluated_has_the_rewards_that_wrappers_make(tmp_path: Path) -> None:
    less = {"id": "TransformReward", "func": f"{__file__}:less_one"}
    clipped = {"id": "ClipReward", "min_reward": -0.5, "max_reward": 0.5}
    # an untrained model gets 0 in its one turn: -1 after `less`, -0.5 when that is clipped
    trained(tmp_path, 1, environment=MIXED | {"max_turns": 1, "wrappers": [less, clipped]})
    lines = metrics_of(tmp_path)
    assert {line["reward/mean"] for line in lines if "reward/mean" in line} == {-0.5}
    assert {line["eval/reward/mean"] for line in lines if "eval/reward/mean" in line} == {-0.5}
