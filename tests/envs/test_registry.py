"""Environments by id, module, file or class; Gymnasium's own `make` and wrappers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from gymnast.envs import Environment, Renderer, make, register, registered
from gymnast.envs.builtin.arithmetic import Arithmetic
from gymnast.errors import (
    ConfigError,
    ModelError,
    ToolDefinitionError,
    UnknownEnvironment,
    UsageError,
    UserCodeError,
)

FILE = """
from beside_it import GREETING
from gymnast.envs import Environment

class Greeting(Environment):
    def setup(self, row):
        return [{"role": "user", "content": GREETING}]
"""

NO_HINT = """
from gymnast.envs import Environment, tool

class Shop(Environment):
    @tool
    def buy(self, a):
        'Buy.'
"""


@pytest.mark.parametrize(
    "name", ["gymnast/Arithmetic-v0", "gymnast.envs.builtin.arithmetic:Arithmetic", Arithmetic]
)
def test_an_environment_has_an_id_a_module_and_a_class(name: Any, tokenizer: Any) -> None:
    env = make(name, tokenizer, max_turns=3)
    assert type(env) is Arithmetic and env.max_turns == 3
    assert isinstance(env.renderer, Renderer)


def test_a_renderer_is_used_as_it_is_and_none_is_fine(renderer: Renderer) -> None:
    assert make(Arithmetic, renderer).renderer is renderer
    assert make(Arithmetic).renderer is None


def test_an_environment_in_a_file_is_found_with_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("GREETING = 'Hello.'")
    path = tmp_path / "greeting.py"
    path.write_text(FILE)
    env = make(f"{path}:Greeting")
    env.reset(options={"row": {}})
    assert env.messages[0]["content"] == "Hello."
    assert type(make(f"{path}:Greeting")) is type(env)  # executed once
    with pytest.raises(UnknownEnvironment, match=r"no 'Greetings'.*mean 'Greeting'"):
        make(f"{path}:Greetings")
    path.with_name("no_hint.py").write_text(NO_HINT)
    for _ in range(2):  # it says so every time, in its own words
        with pytest.raises(ToolDefinitionError, match="'a' has no type hint"):
            make(f"{tmp_path}/no_hint.py:Shop")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ToolDefinitionError, match="'a' has no type hint"):
        make("no_hint:Shop")
    path.with_name("broken.py").write_text("import no_such_module_anywhere")
    with pytest.raises(UserCodeError, match="no_such_module_anywhere"):
        make(f"{tmp_path}/broken.py:Greeting")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gymnast/Arithmetic-v1", "mean 'gymnast/Arithmetic-v0'"),
        ("Arithmetik", "There are: .*gymnast/Arithmetic-v0"),
        ("no_such_module:Class", "no module 'no_such_module'"),
        ("gymnast.envs.builtin.arithmetic:Arithmetics", "mean 'Arithmetic'"),
        ("no/such/file.py:Class", "no file .*file.py"),
        ("json:JSONDecoder", "no subclass"),
        (dict, "no subclass"),
        ("CartPole-v1", "no subclass"),
    ],
)
def test_an_unknown_environment_names_the_nearest(name: Any, words: str) -> None:
    with pytest.raises(UnknownEnvironment, match=words):
        make(name)


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'max_turn'.*mean 'max_turns'"):
        make("gymnast/Arithmetic-v0", max_turn=3)
    with pytest.raises(ConfigError, match=r"no setting 'worked_turn'.*mean 'worked_turns'"):
        make(Arithmetic, worked_turn=3)

    class Anything(Environment):
        def __init__(self, renderer: Any = None, **own: Any) -> None:
            super().__init__(renderer)
            self.own = own

    with pytest.raises(ConfigError, match="max_turns"):
        make(Anything, max_turn=3)  # what it passes on ends at Environment


def test_registering_makes_an_id_for_gymnasium_too(renderer: Renderer) -> None:
    class Mine(Environment):
        pass

    register("tests/Mine-v0", Mine)
    register("tests/Mine-v0", Mine)  # as a notebook does when a cell runs again
    assert registered().count("tests/Mine-v0") == 1
    assert type(make("tests/Mine-v0")) is Mine
    assert type(gymnasium.make("tests/Mine-v0", renderer=renderer).unwrapped) is Mine
    with pytest.raises(UnknownEnvironment, match="cannot be an id"):
        register("not an id!", Mine)
    with pytest.raises(UnknownEnvironment, match="no subclass"):
        register("tests/Dict-v0", dict)  # type: ignore[arg-type]


def test_gymnasium_makes_it_and_its_wrappers_work(renderer: Renderer) -> None:
    env = gymnasium.make("gymnast/Arithmetic-v0", renderer=renderer, max_turns=2)
    wrapped = gymnasium.wrappers.TransformReward(env, lambda reward: 2 * float(reward))
    with pytest.raises(ResetNeeded):
        wrapped.step(np.array([2]))
    wrapped.reset(seed=0)
    inner: Any = wrapped.unwrapped
    action = renderer.tokenizer.encode(f"{inner.row['answer']}<|im_end|>")
    assert wrapped.step(np.array(action))[1] == 2.0
    assert env.spec is not None and env.spec.id == "gymnast/Arithmetic-v0"
    wrapped.close()


def test_what_gymnasium_was_told_about_an_id_holds(renderer: Renderer) -> None:
    gymnasium.register("tests/Brief-v0", Arithmetic, kwargs={"max_turns": 3, "worked_turns": 0})
    assert make("tests/Brief-v0").max_turns == 3
    env = make("tests/Brief-v0", renderer, max_turns=2)
    assert (env.max_turns, env.worked_turns) == (2, 0)
    assert env.spec is not None
    again: Any = gymnasium.make(env.spec).unwrapped
    assert (again.max_turns, again.worked_turns) == (2, 0)


def test_a_made_environment_can_be_made_again_from_its_spec(renderer: Renderer) -> None:
    env = make("gymnast/Arithmetic-v0", renderer, max_turns=2)
    assert env.spec is not None
    again: Any = gymnasium.make(env.spec).unwrapped
    assert type(again) is Arithmetic and again.max_turns == 2


@pytest.fixture
def tokenizer_folder(tmp_path: Path, tokenizer: Any) -> str:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def test_a_tokenizers_name_makes_the_renderer_once(tokenizer_folder: str, tokenizer: Any) -> None:
    one = make("gymnast/Arithmetic-v0", tokenizer_folder)
    other: Any = gymnasium.make("gymnast/Arithmetic-v0", renderer=tokenizer_folder).unwrapped
    assert isinstance(one.renderer, Renderer) and other.renderer is one.renderer
    plain = make("gymnast/Arithmetic-v0", tokenizer)
    assert list(one.reset(seed=0)[0]) == list(plain.reset(seed=0)[0])
    said = r"renderer: './no/such-one' is no"
    with pytest.raises(ModelError, match=said):
        make("gymnast/Arithmetic-v0", "./no/such-one")
    with pytest.raises(ModelError, match=said):
        gymnasium.make("gymnast/Arithmetic-v0", renderer="./no/such-one")


@pytest.mark.parametrize("id", [id for id in registered() if id != "gymnast/Container-v0"])
def test_a_spec_goes_to_json_and_back_with_the_wrappers(id: str, tokenizer_folder: str) -> None:
    wrappers = gymnasium.wrappers
    own: dict[str, Any] = {"command": ["true"]} if "Program" in id else {}
    env: Any = gymnasium.make(id, renderer=tokenizer_folder, max_turns=3, **own)
    env = wrappers.TimeLimit(wrappers.RecordEpisodeStatistics(env), 2)
    text = env.spec.to_json()
    again: Any = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(text))
    assert again.spec.to_json() == text
    assert type(again.unwrapped) is type(env.unwrapped) and again.unwrapped.max_turns == 3
    assert again.unwrapped.renderer is env.unwrapped.renderer


def test_wrappers_count_limit_and_transform(renderer: Renderer) -> None:
    wrappers = gymnasium.wrappers
    env: Any = gymnasium.make("gymnast/Arithmetic-v0", renderer=renderer, max_episode_steps=2)
    env = wrappers.TransformReward(
        wrappers.RecordEpisodeStatistics(env), lambda paid: float(paid) + 1
    )
    env.reset(seed=0)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>'
    action = np.array(renderer.tokenizer.encode(call))
    assert env.step(action)[1:4] == (1.0, False, False)
    _, reward, terminated, truncated, info = env.step(action)
    assert (terminated, truncated) == (False, True)
    assert info["episode"]["l"] == 2 and info["episode"]["r"] == reward - 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_form_a_vector(mode: str, tokenizer_folder: str, renderer: Renderer) -> None:
    own = {} if mode == "sync" else {"shared_memory": False}
    envs: Any = gymnasium.make_vec(
        "gymnast/Arithmetic-v0", 2, mode, vector_kwargs=own, renderer=tokenizer_folder
    )
    prompts, _ = envs.reset(seed=[3, 4])
    plain = make("gymnast/Arithmetic-v0", renderer)
    assert [list(ids) for ids in prompts] == [list(plain.reset(seed=seed)[0]) for seed in (3, 4)]
    plain.reset(seed=3)
    right, wrong = f"{plain.row['answer']}<|im_end|>", "I do not know.<|im_end|>"
    actions = tuple(np.array(renderer.tokenizer.encode(text)) for text in (right, wrong))
    _, rewards, terminated, _, _ = envs.step(actions)
    assert list(rewards) == [1.0, 0.0] and all(terminated)
    envs.close()


@pytest.mark.parametrize(
    "program",
    [
        "import gymnasium; env = gymnasium.make('gymnast:gymnast/Arithmetic-v0')",
        "import gymnast, gymnasium; env = gymnasium.make('gymnast/Arithmetic-v0')",
        "import gymnasium, gymnast; env = gymnasium.make('gymnast/Arithmetic-v0')",
    ],
)
def test_gymnasium_knows_the_ids_once_gymnast_is_imported(program: str) -> None:
    left = "[f for f in sys.meta_path if type(f).__module__.startswith('gymnast')]"
    check = f"import sys; print(type(env.unwrapped).__name__, {left})"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{program}; {check}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "Arithmetic []\n"


def test_importing_gymnast_imports_nothing_heavy() -> None:
    code = "import gymnast, sys; print({'gymnasium', 'numpy', 'torch'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


class NoRenderer(Environment):
    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = size


class NoSuper(Environment):
    def __init__(self, renderer: Any = None, **settings: Any) -> None:
        self.size = 3


def test_a_constructor_that_is_not_like_environments_says_how_it_is_written() -> None:
    words = r"__init__ .*Write: def __init__\(self, renderer=None, .*super\(\).__init__\(renderer,"
    with pytest.raises(UsageError, match=f"NoRenderer.{words}"):
        make(NoRenderer)
    with pytest.raises(UsageError, match=f"NoSuper.{words}"):
        make(NoSuper)
    row = {"row": {"prompt": "Go."}}
    with pytest.raises(UsageError, match=f"NoSuper.{words}"):
        NoSuper().reset(options=row)
    with pytest.raises(UsageError, match=f"NoSuper.{words}"):
        NoSuper().step([1])


def test_the_conversation_is_rendered_as_text(renderer: Renderer) -> None:
    env = gymnasium.make("gymnast/Arithmetic-v0", renderer=renderer, render_mode="ansi")
    env.reset(seed=0)
    shown = env.render()
    assert isinstance(shown, str) and shown.startswith("[user]\n")
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 2, "b": "3"}}\n</tool_call>'
    env.step(renderer.tokenizer.encode(f"Well.{call}<|im_end|>"))
    env.step(renderer.tokenizer.encode("It is 6.<|im_end|>"))
    said = '[assistant]\nWell.\n-> multiply(a=2, b="3")\n[tool multiply]\n6\n[assistant]\nIt is 6.'
    assert env.render() == f"{shown}\n{said}"
    with pytest.raises(ConfigError, match=r"render_mode must be .ansi. or None, got 'human'"):
        make("gymnast/Arithmetic-v0", renderer, render_mode="human")


def test_without_a_render_mode_there_is_a_warning_as_of_gymnasiums_own(renderer: Renderer) -> None:
    env = make("gymnast/Arithmetic-v0", renderer)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match='make the environment with render_mode="ansi"'):
        assert env.render() is None
