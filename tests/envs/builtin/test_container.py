"""Tools that live in an image, told of and run by a program in it."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Outcome, Renderer, check_env, make
from gymnast.errors import ConfigError, GymnastError, ToolDefinitionError, UserCodeError

STOREROOM = Path(__file__).parents[3] / "examples/container/tools.py"
ROW = {"prompt": "Make sure that there are 12 eggs.", "item": "eggs", "wanted": 12}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(tiny_tokenizer())


@pytest.fixture
def storeroom(renderer: Renderer) -> Iterator[Environment]:
    env = make(
        "gymnast/Container-v0",
        renderer,
        sandbox="local",
        program=[sys.executable, str(STOREROOM)],
    )
    yield env
    env.close()


def act(env: Environment, name: str, **arguments: Any) -> Outcome:
    function = {"name": name, "arguments": arguments}
    call = {"id": "a", "type": "function", "function": function}
    return asyncio.run(env.act({"role": "assistant", "tool_calls": [call]}))


def text(outcome: Outcome) -> str:
    return str(outcome.messages[0]["content"])


def program(folder: Path, body: str) -> list[str]:
    """A program whose `describe` and the like are written in Python."""
    path = folder / "tools.py"
    path.write_text(f"import json, os, sys, time\noperation = sys.argv[1]\n{body}\n")
    return [sys.executable, str(path)]


def opened(folder: Path, body: str, **settings: Any) -> Environment:
    return make(
        "gymnast/Container-v0",
        None,
        sandbox={"backend": "local", "timeout_s": 20.0},
        program=program(folder, body),
        **settings,
    )


TOOL = {"name": "go", "description": "Go.", "parameters": {"type": "object", "properties": {}}}


def describing(*tools: dict[str, Any], **more: Any) -> str:
    return f"if operation == 'describe': print({json.dumps(json.dumps(said(*tools, **more)))})\n"


def said(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"protocol": 1, "tools": tools or [TOOL], **more}


def test_the_program_says_which_tools_there_are(storeroom: Environment) -> None:
    assert [tool["function"]["name"] for tool in storeroom.tools] == ["count", "order"]
    item = storeroom.tools[0]["function"]["parameters"]["properties"]["item"]
    assert item["enum"][0] == "apples" and item["description"] == "What is stored."


def test_it_passes_check_env(storeroom: Environment) -> None:
    check_env(storeroom)


def test_an_episode_is_prepared_played_and_scored_by_the_program(storeroom: Environment) -> None:
    storeroom.reset(seed=1, options={"row": ROW})
    there = int(text(act(storeroom, "count", item="eggs")))
    done = act(storeroom, "order", item="eggs", number=12 - there)
    assert (text(done), done.terminated, done.reward) == ("ordered", True, 1.0)
    assert done.info["reward_parts"] == {"called": 0.2, "stored": 0.8}


def test_equal_seeds_begin_alike(storeroom: Environment) -> None:
    def counts(seed: int) -> list[str]:
        storeroom.reset(seed=seed, options={"row": ROW})
        items = ("apples", "bolts", "candles", "drums", "eggs")
        return [text(act(storeroom, "count", item=item)) for item in items]

    assert counts(1) == counts(1) != counts(2)


def test_what_the_policy_gets_wrong_is_told_to_it(storeroom: Environment) -> None:
    storeroom.reset(seed=1, options={"row": ROW})
    wrong = act(storeroom, "count", item="pears")
    assert "'pears' is not one of" in text(wrong)
    assert wrong.info["errors"][0].kind == "bad_arguments"
    refused = act(storeroom, "order", item="eggs", number=0)
    assert "number must be at least 1" in text(refused) and not refused.terminated
    assert refused.info["errors"][0].kind == "exception"


def test_a_number_in_quotes_is_a_number(storeroom: Environment) -> None:
    storeroom.reset(seed=1, options={"row": ROW})
    assert text(act(storeroom, "order", item="eggs", number="3")) == "ordered"


def test_a_config_can_name_stop_tools_of_the_image(tmp_path: Path) -> None:
    env = opened(tmp_path, describing() + "else: print('gone')", stop_tools=["go"])
    env.reset(options={"row": {"prompt": "Go."}})
    done = act(env, "go")
    assert (text(done), done.terminated, done.reward) == ("gone", True, 0.0)
    env.close()


def test_a_stop_tool_that_is_not_there_is_named(tmp_path: Path) -> None:
    env = opened(tmp_path, describing(), stop_tools=["gone"])
    with pytest.raises(ConfigError, match=r"'gone'.*Did you mean 'go'"):
        env.reset(options={"row": {"prompt": "Go."}})
    env.close()


def test_messages_of_setup_begin_the_episode(tmp_path: Path) -> None:
    body = describing(setup=True) + (
        "told = json.loads(sys.stdin.read() or 'null')\n"
        "if operation == 'setup':\n"
        "    say = told['row']['prompt'].upper()\n"
        "    print(json.dumps({'messages': [{'role': 'user', 'content': say}]}))\n"
    )
    env = opened(tmp_path, body)
    env.reset(options={"row": {"prompt": "Go."}})
    assert env.messages == [{"role": "user", "content": "GO."}]
    env.close()


def test_a_tool_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    body = describing(TOOL | {"timeout_s": 1}) + "if operation == 'call': time.sleep(60)"
    env = opened(tmp_path, body)
    env.reset(options={"row": {"prompt": "Go."}})
    assert "out of time, and killed" in text(act(env, "go"))
    env.close()


def test_arguments_may_have_any_name(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"self": {}, "name": {}, "sandbox": {}}}
    body = describing(TOOL | {"parameters": schema}) + "print(sys.stdin.read())"
    env = opened(tmp_path, body.replace("\nprint", "\nelse: print"))
    env.reset(options={"row": {"prompt": "Go."}})
    given = {"self": 1, "name": "x", "sandbox": [None]}
    function = {"name": "go", "arguments": given}
    call = {"id": "a", "type": "function", "function": function}
    outcome = asyncio.run(env.act({"role": "assistant", "tool_calls": [call]}))
    assert json.loads(text(outcome)) == given
    env.close()


@pytest.mark.parametrize(
    ("body", "error", "what"),
    [
        ("sys.exit('no such thing')", UserCodeError, "describe: exit code 1: no such thing"),
        ("print('tools!')", UserCodeError, "printed 'tools!.*which is no JSON"),
        ("print('[]')", UserCodeError, 'which has no "protocol": 1'),
        ("print(json.dumps({'protocol': 2, 'tools': []}))", UserCodeError, '"protocol": 1'),
        ("print(json.dumps({'protocol': 1}))", UserCodeError, "tools is None, not a list"),
        (describing(rewards=True), UserCodeError, "has the field 'rewards'"),
        (describing(reward="yes"), UserCodeError, "reward is 'yes', not true or false"),
        (describing(TOOL, TOOL), ToolDefinitionError, "two tools 'go'"),
        (describing(TOOL | {"description": 3}), ToolDefinitionError, "'go': description is 3"),
        (describing(TOOL | {"stops": True}), ToolDefinitionError, "the field 'stops'; a tool has"),
        (describing(TOOL | {"stop": 1}), ToolDefinitionError, "stop is 1; it must be true or"),
        (describing(TOOL | {"timeout_s": 0}), ToolDefinitionError, "timeout_s must be > 0"),
        (describing(TOOL | {"parameters": {"type": "array"}}), ToolDefinitionError, "an object"),
        (
            describing(TOOL | {"parameters": {"properties": {"a": {"type": "integr"}}}}),
            ToolDefinitionError,
            "no valid JSON schema",
        ),
        (
            describing(TOOL | {"parameters": {"properties": {}, "required": ["a"]}}),
            ToolDefinitionError,
            "required names 'a', which is none of its properties",
        ),
        (
            describing(TOOL | {"parameters": {"properties": {"a": {"$ref": "#/$defs/B"}}}}),
            ToolDefinitionError,
            r"refers to #/\$defs/B, which is not in",
        ),
        (describing(rows=True) + "else: print(7)", UserCodeError, "printed the row 7"),
        (describing(rows=True), UserCodeError, "rows: printed none"),
        (describing(setup=True) + "else: print('[1]')", UserCodeError, "setup: printed"),
    ],
)
def test_a_program_that_breaks_the_protocol_is_told_how(
    body: str, error: type[GymnastError], what: str, tmp_path: Path
) -> None:
    env = opened(tmp_path, body)
    with pytest.raises(error, match=what):
        env.reset(options={"row": {"prompt": "Go."}})
    env.close()


@pytest.mark.parametrize("printed", ['"much"', str(10**400), '{"a": 1e308, "b": 1e308}', "NaN"])
def test_a_reward_that_is_no_number_stops_the_run_with_its_row(
    printed: str, tmp_path: Path
) -> None:
    env = opened(tmp_path, describing(reward=True) + f"else: print({printed!r})")
    env.reset(options={"row": {"prompt": "Go."}})
    with pytest.raises(UserCodeError, match="no finite number, nor some") as caught:
        asyncio.run(env.act({"role": "assistant", "content": "Done."}))
    assert "Go." in str(caught.value)
    env.close()


@pytest.mark.parametrize("program", ["", [], ["tools", ""], [3]])
def test_a_program_must_be_named(program: Any) -> None:
    with pytest.raises(ConfigError, match="program is"):
        make("gymnast/Container-v0", None, sandbox="local", program=program)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["-c"], True),
        (["-X", "utf8", "-c"], True),
        (["-uc"], True),
        (["-I", "-c"], False),
        (["-uIc"], False),
    ],
)
def test_an_old_python_that_imports_from_its_folder_is_refused(
    options: list[str], refused: bool, tmp_path: Path
) -> None:
    old = tmp_path / "python3.9"
    old.write_text(
        f'#!/bin/sh\ncase "$*" in *version_info*) echo 3.9;; *) exec {sys.executable} "$@";; esac\n'
    )
    old.chmod(0o755)
    code = f"import sys\noperation = sys.argv[1]\nimport json\n{describing(reward=True)}"
    argv = [str(old), *options, code]
    env = make("gymnast/Container-v0", None, sandbox="local", program=argv)
    if refused:
        with pytest.raises(ConfigError, match=r"Python 3\.9; it must be 3\.11"):
            env.reset(options={"row": {"prompt": "Go."}})
    else:
        env.reset(options={"row": {"prompt": "Go."}})
    env.close()


@pytest.mark.parametrize("form", ["script", "argument", "link"])
def test_a_program_of_several_modules_scores_as_it_runs(form: str, tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text("EGG = 0.5\n")
    body = f"import prices\n{describing(reward=True)}if operation == 'reward': print(prices.EGG)"
    argv = program(tmp_path, body)
    if form != "argument":
        script = Path(argv[1])
        script.write_text(f"#!{sys.executable}\n{script.read_text()}")
        script.chmod(0o755)
        argv = [str(script)]
    if form == "link":
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/tools").symlink_to(argv[0])
        argv = [str(tmp_path / "bin/tools")]
    env = make("gymnast/Container-v0", None, sandbox="local", program=argv)
    env.reset(options={"row": ROW})
    assert asyncio.run(env.act({"role": "assistant", "content": "Done."})).reward == 0.5
    env.close()
