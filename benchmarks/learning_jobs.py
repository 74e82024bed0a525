"""The jobs of `learning.py`, by name: each is a config and what is changed in it.

grpo-0, rloo-0, ..., trl-0      the job of the section on TRL, by several algorithms
rejection-0, gdpo_tokens-0, ... eight smaller steps of it
letters-grpo-0, ...             eight steps of a tiny random model by every name that has a reward
distillation-0                  eight steps of examples/shop.yaml by a teacher alone
main-0, main-1, main-2          examples/arithmetic.yaml after a warm-up of four steps
shop-warmup-0, -worked, -distil examples/shop.yaml: what brings a model to call a tool at all
warehouse-warmup-0, ...         the same for four tools that share a state
trail-grpo-0, -turn_level, ...  four dependent calls and one reward, by how credit is given
hopeless-without-0, -with       half of the rows give no reward: dynamic sampling
lake-0                          a game of Gymnasium's, after four steps of demonstrations
clock-0                         a server of the Model Context Protocol, after six of them
code-0, sql-0, search-0         examples/code.yaml, examples/sql.yaml, examples/search.yaml
program-0                       examples/program.yaml: the main job, played by an agent program
coding-0                        examples/coding_agent.yaml, in Landlock boxes and float32
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ARITHMETIC = ROOT / "examples" / "arithmetic.yaml"
SHOP = ROOT / "examples" / "shop.yaml"
CODE = ROOT / "examples" / "code.yaml"
CODING_AGENT = ROOT / "examples" / "coding_agent.yaml"
FROZEN_LAKE = ROOT / "examples" / "frozen_lake.yaml"
CLOCK_YAML = ROOT / "examples" / "clock.yaml"
PROGRAM = ROOT / "examples" / "program.yaml"
SEARCH = ROOT / "examples" / "search.yaml"
SQL = ROOT / "examples" / "sql.yaml"
TINY = ROOT / "examples" / "tiny.yaml"
TASKS = ROOT / "benchmarks" / "tasks"
SEEDS = (0, 1, 2)

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class LearningJob:
    """A job.

    Attributes:
        study: The table and the figure that it belongs to.
        config: What is changed.
        settings: The values that replace the config's, by dotted key.
        side: The module that runs it.
    """

    study: str
    config: Path
    settings: Settings
    side: str = "learning_gymnast"


MAIN = {
    "warmup": {
        "demonstrations": "solve",
        "steps": 4,
        "rows_per_step": 16,
        "learning_rate": 1e-3,
    },
    "trainer.steps": 4,
    "trainer.learning_rate": 2e-4,
    "evaluation.rows": 64,
    "evaluation.every_steps": 0,
}
# As TRL's committed run.
AS_TRL = {"evaluation.every_steps": 0}
COMPARED = ("grpo", "rloo", "dr_grpo", "gspo")
# CPUs without bfloat16 instructions take several times as long in bfloat16.
CODING: Settings = {"environment.sandbox": "landlock", "model.dtype": "float32"}
# Advantages and losses that are no variant of these.
OTHERS = ("rejection", "reinforce_pp_tokens", "gdpo_tokens")
FOUR_ROWS: Settings = {
    "trainer.steps": 8,
    "trainer.rows_per_step": 4,
    "evaluation": {"rows": 64, "every_steps": 0, "temperature": 1.0},
}
# Every name that learns from rewards, on a model of random weights.
NAMES = (
    *("grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo", "reinforce_pp", "gdpo", "rejection"),
    *("reinforce_pp_baseline", "reinforce_pp_tokens", "gdpo_tokens"),
    *("turn_level", "gigpo", "state_baseline"),
)
EIGHT_STEPS: Settings = {
    "environment": {"id": f"{TASKS / 'letters.py'}:Letters", "max_turns": 1},
    "sampling.max_new_tokens": 8,
    "algorithm.group_size": 8,
    "trainer.steps": 8,
    "trainer.rows_per_step": 8,
    "trainer.learning_rate": 5e-3,
    "evaluation": {"rows": 64, "every_steps": 0},
}
OF_NAMES: Mapping[str, Settings] = {
    "rejection": {"algorithm.threshold": 0.4},  # few random answers are all letters
    "dapo": {"algorithm.masked_stop_reasons": []},  # nearly all of them are cut off
}

# A teacher added to the reward, with so low a weight that the reward decides once there is any;
# cooler, so that the policy stays where the teacher is sure.
DISTIL: Settings = {
    "warmup": None,
    "algorithm.group_size": 4,
    "algorithm.teacher": {
        "model": "base",
        "estimator": "exact",
        "divergence": "forward_kl",
        "weight": 0.3,
    },
    "sampling.temperature": 0.7,
    "trainer.steps": 16,
    "trainer.learning_rate": 2e-3,
    "evaluation.every_steps": 4,
    "evaluation.temperature": 0.7,
}
# How a model comes to call a tool that it never calls.
WAYS: Mapping[str, Settings] = {
    "warmup": {},
    "worked": {
        "warmup": None,
        "environment.worked_turns": 2,
        "trainer.steps": 8,
        "trainer.learning_rate": 1e-3,
        "evaluation.every_steps": 4,
    },
    "distil": {**DISTIL, "environment.id": f"{TASKS / 'hinted_shop.py'}:HintedShop"},
}
ALONE = {
    **WAYS["distil"],
    "algorithm.name": "distillation",
    "trainer.steps": 8,
    "evaluation.every_steps": 0,
}
WAREHOUSE = {
    "environment": {
        "id": f"{TASKS / 'warehouse.py'}:Warehouse",
        "max_turns": 5,
        "context_length": 2048,
    },
}
WAREHOUSE_WAYS: Mapping[str, Settings] = {
    "warmup": WAYS["warmup"],
    "worked": {
        **WAYS["worked"],
        "environment.worked_turns": 4,
        "trainer.steps": 12,
        "trainer.rows_per_step": 4,
    },
    "distil": DISTIL,
}

TRAIL = {
    "environment": {
        "id": f"{TASKS / 'trail.py'}:Trail",
        "max_turns": 6,
        "context_length": 1024,
    },
    "warmup.steps": 3,  # so few that most episodes still fail
    "trainer.steps": 12,
    "trainer.rows_per_step": 4,
    "trainer.learning_rate": 5e-4,
    "evaluation": {"rows": 64, "every_steps": 6, "temperature": 1.0},
}
CREDIT: Mapping[str, Settings] = {
    "grpo": {},
    "turn_level": {"algorithm.name": "turn_level", "algorithm.gamma": 0.9},
    "gigpo": {"algorithm.name": "gigpo", "algorithm.gamma": 0.9},
    "state_baseline": {"algorithm.name": "state_baseline", "algorithm.gamma": 0.9},
}

LAKE = {
    "environment.id": f"{TASKS / 'lake.py'}:Lake",
    "environment.max_turns": 8,
    "warmup": {
        "demonstrations": "solve",
        "steps": 4,  # so few that most episodes still fail
        "rows_per_step": 16,
        "learning_rate": 1e-3,
    },
    "algorithm.group_size": 8,
    "trainer.steps": 12,
    "trainer.learning_rate": 1e-4,
    "evaluation": {"rows": 32, "every_steps": 6, "temperature": 1.0},
}

CLOCK = {
    "environment": {
        "id": f"{TASKS / 'clock.py'}:Clock",
        "session": "shared",
        "offer": ["convert_time"],
        "max_turns": 3,
        "context_length": 1024,
    },
    "data": None,
    "rewards": None,
    "sampling.max_new_tokens": 80,
    "warmup": {
        "demonstrations": "solve",
        "steps": 6,
        "rows_per_step": 16,
        "learning_rate": 1e-3,
    },
    "algorithm.group_size": 8,
    "trainer.steps": 10,
    "trainer.rows_per_step": 4,
    "trainer.learning_rate": 2e-4,
    "evaluation": {"rows": 32, "every_steps": 5, "temperature": 1.0},
}

# With more than one seed.
SEVERAL_SEEDS = {
    *(("shop", way) for way in WAYS),
    ("warehouse", "warmup"),
    ("trail", "grpo"),
    ("trail", "gigpo"),
}

HOPELESS = {
    "environment.id": f"{TASKS / 'hopeless.py'}:HalfHopeless",
    "trainer.steps": 12,
    "evaluation": {"rows": 64, "every_steps": 4, "temperature": 1.0},
}
# Eight rows of which four can be learned from, and four rows that are replaced until they can.
DYNAMIC: Mapping[str, Settings] = {
    "without": {},
    "with": {"trainer.rows_per_step": 4, "trainer.dynamic_sampling": {"most_rows": 16}},
}


def _jobs() -> dict[str, LearningJob]:
    """All jobs by name; the first seed of each study comes before the others."""
    jobs: dict[str, LearningJob] = {}
    for seed in SEEDS:
        also = {"seed": seed}
        shops: list[tuple[str, Settings, Mapping[str, Settings]]] = [
            ("shop", {}, WAYS),
            ("warehouse", WAREHOUSE, WAREHOUSE_WAYS),
            ("trail", TRAIL, CREDIT),
        ]
        for study, base, ways in shops:
            for way, changed in ways.items():
                if seed == 0 or (study, way) in SEVERAL_SEEDS:
                    settings = {**base, **changed, **also}
                    jobs[f"{study}-{way}-{seed}"] = LearningJob(study, SHOP, settings)
        for name, changed in DYNAMIC.items():
            settings = {**HOPELESS, **changed, **also}
            jobs[f"hopeless-{name}-{seed}"] = LearningJob("hopeless", ARITHMETIC, settings)
        jobs[f"main-{seed}"] = LearningJob("main", ARITHMETIC, {**MAIN, **also})
        for name in (*COMPARED, "trl"):
            algorithm = "grpo" if name == "trl" else name
            settings = {**AS_TRL, "algorithm.name": algorithm, **also}
            side = "learning_trl" if name == "trl" else "learning_gymnast"
            jobs[f"{name}-{seed}"] = LearningJob("algorithms", ARITHMETIC, settings, side)
    for name in OTHERS:
        settings = {**FOUR_ROWS, "algorithm.name": name}
        jobs[f"{name}-0"] = LearningJob("others", ARITHMETIC, settings)
    for name in NAMES:
        settings = {**EIGHT_STEPS, "algorithm.name": name, **OF_NAMES.get(name, {})}
        jobs[f"letters-{name}-0"] = LearningJob("eight steps", TINY, settings)
    jobs["distillation-0"] = LearningJob("alone", SHOP, ALONE)
    jobs["code-0"] = LearningJob("code", CODE, {})
    jobs["lake-0"] = LearningJob("game", FROZEN_LAKE, LAKE)
    jobs["clock-0"] = LearningJob("server", CLOCK_YAML, CLOCK)
    jobs["coding-0"] = LearningJob("coding", CODING_AGENT, CODING)
    jobs["program-0"] = LearningJob("program", PROGRAM, {})
    jobs["search-0"] = LearningJob("search", SEARCH, {})
    jobs["sql-0"] = LearningJob("sql", SQL, {})
    return jobs


JOBS = _jobs()
# What a whole run takes: TRL's curve stands, and the comparison with it.
DEFAULT = [name for name, job in JOBS.items() if job.study != "algorithms"]
