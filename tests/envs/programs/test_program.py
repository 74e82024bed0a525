"""Programs as environments: what they are told, how they end, what becomes of their requests."""

import asyncio
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from gymnast.envs import Episode, Program, ProgramResult, Renderer, make
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.errors import ConfigError, NoRequest, SandboxUnavailable, UsageError
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.types import StopReason, ToolCall
from program_fixtures import left_behind, script

pytestmark = pytest.mark.usefixtures("only_of_programs")

ROW = {"prompt": "What is 1 plus 2?", "level": 7, "answer": "a secret answer"}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def calculate(base_url: str, api_key: str, task: dict[str, Any]) -> str | None:
    """Ask, and add what it is told to, until there is an answer."""
    messages: Any = [{"role": "user", "content": task["prompt"]}]
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        while True:
            asked = client.chat.completions.create(
                model="policy", messages=messages, tools=[ADD], temperature=0.5
            )
            message = asked.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})


async def calculate_later(base_url: str, api_key: str, task: dict[str, Any]) -> str | None:
    """The same as a coroutine."""
    return await asyncio.to_thread(calculate, base_url, api_key, task)


def raises(base_url: str, api_key: str, task: dict[str, Any]) -> None:
    """Ask once, and fail."""
    calculate(base_url, api_key, task)
    raise LookupError("nothing to be found")


class Played:
    """An episode that is played by saying messages."""

    def __init__(self, renderer: Renderer, row: Any = None, **settings: Any) -> None:
        self.env = make(settings.pop("environment", Program), renderer, **settings)
        self.renderer = renderer
        ids, self.info = self.env.reset(options={"row": row or ROW, "branches": True})
        self.contexts = {0: list(map(int, ids))}
        self.reward, self.terminated, self.over = 0.0, False, False

    def say(self, *said: str | list[ToolCall]) -> "Played":
        """Say messages, each a text or calls, and keep what is appended to which context."""
        for each in said:
            text, calls = (each, []) if isinstance(each, str) else ("", each)
            message: Any = {"role": "assistant", "content": text, "tool_calls": calls}
            action = self.renderer.encode(message, tools=self.env.tools)
            self.contexts[self.info["branch"]] += action
            ids, self.reward, self.terminated, truncated, self.info = self.env.step(action)
            self.over = self.terminated or truncated
            if "branch" in self.info:
                begun = self.contexts.setdefault(self.info["branch"], [])
                begun += self.info.get("prompt_ids", ())
                begun += list(map(int, ids))
        return self

    def text(self, branch: int = 0) -> str:
        return str(self.renderer.tokenizer.decode(self.contexts[branch]))

    @property
    def metrics(self) -> dict[str, float]:
        return dict(self.info["metrics"])


@pytest.fixture
def play(renderer: Renderer) -> Iterator[Callable[..., Played]]:
    played: list[Played] = []

    def play(**settings: Any) -> Played:
        played.append(Played(renderer, **settings))
        return played[-1]

    yield play
    for each in played:
        each.env.close()
    assert not left_behind()


CALL = ToolCall("c1", "add", {"a": 1})


@pytest.mark.parametrize("function", [calculate, calculate_later, f"{__name__}:calculate"])
def test_a_function_asks_until_it_has_an_answer(play: Callable[..., Played], function: Any) -> None:
    if isinstance(function, str):
        function = function.replace(__name__, str(Path(__file__)))
    played = play(function=function).say([CALL], "It is 3.")
    assert played.terminated and played.reward == 1.0
    assert played.info["stop_reason"] is StopReason.environment
    assert played.env.result == ProgramResult(0, value="It is 3.")  # type: ignore[attr-defined]
    assert played.metrics["program/requests"] == 2
    assert played.metrics["program/received"] == 2
    assert played.metrics["program/branches"] == 1
    assert played.metrics["program/unused/temperature"] == 2
    assert "unreceived" not in played.info


def test_its_context_is_what_an_environment_with_this_tool_would_have_made(
    play: Callable[..., Played], renderer: Renderer
) -> None:
    played = play(function=calculate).say([CALL], "It is 3.")
    tools = [ADD]
    ids = renderer.prompt([{"role": "user", "content": ROW["prompt"]}], tools)
    ids += renderer.encode({"role": "assistant", "content": "", "tool_calls": [CALL]}, tools=tools)
    result: Any = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    ids += renderer.observe(ids, [result], tools=tools)
    ids += renderer.encode({"role": "assistant", "content": "It is 3."}, tools=tools)
    assert played.contexts == {0: ids}


def test_a_function_that_raises_has_failed_as_a_program_does(play: Callable[..., Played]) -> None:
    played = play(function=raises).say("3")
    result = played.env.result  # type: ignore[attr-defined]
    assert played.terminated and played.reward == 0.0
    assert result.exit_code == 1 and "LookupError: nothing to be found" in result.stderr


def test_a_command_finds_its_task_and_nothing_else_of_the_row(play: Callable[..., Played]) -> None:
    found = """
    ask([{"role": "user", "content": json.dumps([task, dict(os.environ), os.getcwd()])}])
    """
    played = play(command=script(found), shown=["level"], variables={"EXTRA": "more"})
    said = json.loads(played.env.messages[0]["content"])
    task, variables, folder = said
    assert task == {"prompt": ROW["prompt"], "level": 7}
    assert set(variables) - {"LC_CTYPE", "PWD", "SHLVL", "_"} == {
        "PATH", "HOME", "TMPDIR", "LANG", "EXTRA", "GYMNAST_TASK", "GYMNAST_LOCAL_SANDBOX",
        "OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY",
    }  # fmt: skip
    assert Path(variables["HOME"]).parent == Path(folder).parent
    for path in Path(folder).parent.rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()
    assert "secret" not in json.dumps(variables)
    played.say("done")
    assert played.reward == 1.0


class Files(Program):
    """Scores what a command has written."""

    command = script("""
    open("answer.txt", "w").write(ask(said)["content"])
    print("printed"); print("wrong", file=sys.stderr)
    sys.exit(3)
    """)

    def reward(self, episode: Episode) -> float:
        assert self.result.exit_code == 3 and not self.result.stopped
        assert (self.result.stdout, self.result.stderr) == ("printed\n", "wrong\n")
        assert self.result.folder is not None
        return float((self.result.folder / "answer.txt").read_text())


def test_a_reward_sees_the_exit_code_the_output_and_the_files(play: Callable[..., Played]) -> None:
    played = play(environment=Files).say("0.75")
    assert played.reward == 0.75
    folder = played.env.result.folder  # type: ignore[attr-defined]
    assert not folder.exists()


async def paid(episode: Episode, result: ProgramResult) -> float:
    return 0.5 if result.value == episode.answer else 0.0


def test_a_reward_may_be_a_function(play: Callable[..., Played]) -> None:
    assert play(function=calculate, reward=paid).say("3").reward == 0.5


def test_a_program_may_run_on_after_its_last_answer(play: Callable[..., Played]) -> None:
    command = script("ask(said); import time; time.sleep(0.5); print('late')")
    played = play(command=command).say("3")
    assert played.env.result.stdout == "late\n"  # type: ignore[attr-defined]


def test_only_the_end_of_a_long_output_is_kept(play: Callable[..., Played]) -> None:
    played = play(command=script("ask(said); print('x' * 5_000_000 + 'end')")).say("3")
    stdout = played.env.result.stdout  # type: ignore[attr-defined]
    assert stdout.endswith("xend\n") and len(stdout) < 70_000
    assert stdout.startswith("[4934468 bytes before]\n")


def test_another_history_opens_a_context(play: Callable[..., Played]) -> None:
    command = script("""
    first = ask(said)
    ask([{"role": "user", "content": "Summarise."}])
    ask([*said, {**first, "content": first["content"] + "\\n"}, {"role": "user", "content": "On."}])
    """)
    played = play(command=command).say("one")
    assert played.info["branch"] == 1 and "Summarise." in played.text(1)
    played.say("two")
    assert played.info["branch"] == 0 and played.text(0).count("one") == 1
    played.say("three")
    assert played.terminated and len(played.contexts) == 2
    assert played.metrics["program/branches"] == 2
    assert played.metrics["program/changed/content"] == 1


def test_a_program_asks_for_fewer_tokens(play: Callable[..., Played]) -> None:
    command = script("print(ask(said, max_tokens=5)['content']); ask(said)")
    played = play(command=command)
    assert played.info["tokens_left"] == 5
    played.say("3")
    assert played.info["tokens_left"] > 1000


def test_an_action_that_was_cut_is_told_as_such(play: Callable[..., Played]) -> None:
    def finish(base_url: str, api_key: str, task: Any) -> Any:
        with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
            messages: Any = [{"role": "user", "content": "Go."}]
            return client.chat.completions.create(model="", messages=messages, max_tokens=2)

    played = play(function=finish)
    action = played.renderer.encode({"role": "assistant", "content": "one two three four"})[:2]
    played.env.step(action)
    told = played.env.result.value  # type: ignore[attr-defined]
    assert told.choices[0].finish_reason == "length" and told.usage.completion_tokens == 2
    assert told.usage.prompt_tokens == len(played.contexts[0])


# ---- what programs do ----


@pytest.mark.parametrize(
    "command",
    [script("pass"), script("sys.exit(2)"), ["false"], "exit 3", script("raise OSError('no')")],
)
def test_one_that_never_asks_is_no_episode(renderer: Renderer, command: Any) -> None:
    env = make(Program, renderer, command=command)
    with pytest.raises(NoRequest, match="ended before its first request, with the exit code"):
        env.reset(options={"row": ROW})
    env.close()
    assert not left_behind()


def never_asks(base_url: str, api_key: str, task: dict[str, Any]) -> None:
    """Fail before it has asked."""
    raise OSError("no key")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ({"command": "echo no key >&2; exit 3"}, ["code 3.", "OPENAI_BASE_URL", "ANTHROPIC_API"]),
        ({"function": never_asks}, ["code 1.", "`base_url` with the key `api_key`"]),
    ],
)
def test_one_that_never_asks_is_told_where_to(
    renderer: Renderer, program: dict[str, Any], says: list[str]
) -> None:
    env = make(Program, renderer, **program)
    with pytest.raises(NoRequest) as caught:
        env.reset(options={"row": ROW})
    assert all(part in str(caught.value) for part in [*says, "no key"])
    env.close()


def test_one_that_does_nothing_is_ended_with_its_episode(renderer: Renderer) -> None:
    env = make(Program, renderer, command=script("import time; time.sleep(60)"))
    env.episode_timeout_s = 0.5
    begun = time.monotonic()
    with pytest.raises(NoRequest, match=r"episode_timeout_s=0\.5"):
        env.reset(options={"row": ROW})
    assert time.monotonic() - begun < 10
    env.close()
    assert not left_behind()


def test_one_that_hangs_after_an_answer_is_ended(play: Callable[..., Played]) -> None:
    played = play(command=script("ask(said); import time; time.sleep(60)"), episode_timeout_s=1.5)
    played.say("3")
    assert played.info["stop_reason"] is StopReason.timeout and not played.terminated
    result = played.env.result  # type: ignore[attr-defined]
    assert result.exit_code == 137 and result.stopped
    assert played.reward == 0.0


def test_one_that_dies_is_scored(play: Callable[..., Played]) -> None:
    played = play(command=script("ask(said); os.kill(os.getpid(), 9)")).say("3")
    result = played.env.result  # type: ignore[attr-defined]
    assert played.terminated and (result.exit_code, result.stopped) == (137, False)


def test_one_that_asks_for_ever_is_ended(play: Callable[..., Played]) -> None:
    played = play(command=script("while True: ask(said)"), max_turns=3)
    played.say("1", "2", "3")
    assert played.over and played.info["stop_reason"] is StopReason.max_turns
    assert played.env.result.stopped  # type: ignore[attr-defined]


def test_what_it_starts_ends_with_it(play: Callable[..., Played]) -> None:
    command = script("""
    import subprocess
    sleeping = ["sleep", "300"]
    subprocess.Popen(sleeping)
    subprocess.Popen(sleeping, start_new_session=True)
    ask(said)
    """)
    played = play(command=command).say("3")
    assert played.terminated and not left_behind()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n": 2}, "one request gets one answer"),
        ({"logprobs": True}, "log-probabilities"),
        ({"response_format": {"type": "json_object"}}, "distribution"),
    ],
)
def test_what_cannot_be_given_is_refused_and_the_program_goes_on(
    play: Callable[..., Played], more: dict[str, Any], why: str
) -> None:
    command = script(f"""
    import urllib.error
    try:
        ask(said, **{more!r})
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    ask(said, made_up=1)
    """)
    played = play(command=command).say("3")
    stdout = played.env.result.stdout  # type: ignore[attr-defined]
    assert stdout.startswith("400 ") and why in stdout
    assert played.metrics["program/unused/made_up"] == 1


def test_an_image_is_refused(play: Callable[..., Played]) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    command = script(f"""
    import urllib.error
    try:
        ask([{{"role": "user", "content": [{image!r}]}}])
    except urllib.error.HTTPError as error:
        print(error.code)
    ask(said)
    """)
    assert play(command=command).say("3").env.result.stdout == "400\n"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_five_megabytes_do_not_fit_and_the_program_is_told(play: Callable[..., Played]) -> None:
    command = script("""
    import urllib.error
    ask(said)
    try:
        ask([{"role": "user", "content": "word " * 1_000_000}])
    except urllib.error.HTTPError as error:
        print(error.code, json.load(error)["error"]["code"])
    """)
    played = play(command=command, context_length=2048).say("3")
    stdout = played.env.result.stdout  # type: ignore[attr-defined]
    assert stdout == "400 context_length_exceeded\n" and played.terminated
    assert played.metrics["program/refused"] == 1


def test_one_that_asks_after_its_end_is_refused(play: Callable[..., Played]) -> None:
    kept: list[str] = []

    def leave(base_url: str, api_key: str, task: Any) -> str | None:
        kept.extend((base_url, api_key))
        return calculate(base_url, api_key, task)

    play(function=leave).say("3")
    with pytest.raises(openai.AuthenticationError):
        calculate(kept[0], kept[1], ROW)


def test_requests_at_once_are_answered_in_contexts_of_their_own(
    play: Callable[..., Played],
) -> None:
    command = script("""
    from concurrent.futures import ThreadPoolExecutor
    prompts = [[{"role": "user", "content": f"part {n}"}] for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(ask, prompts))
    rest = [[*p, t, {"role": "user", "content": "on"}] for p, t in zip(prompts, told)]
    print(sorted(ask(each)["content"] for each in rest))
    """)
    played = play(command=command).say(*map(str, range(8)))
    assert played.terminated and len(played.contexts) == 4
    assert played.env.result.stdout == "['4', '5', '6', '7']\n"  # type: ignore[attr-defined]
    for number in range(4):
        assert played.text(number).count("part ") == 1


def test_requests_at_once_are_refused_where_the_order_must_be_the_same(renderer: Renderer) -> None:
    command = script("""
    import urllib.error
    from concurrent.futures import ThreadPoolExecutor
    def code(prompt):
        try:
            return ask(prompt)["content"]
        except urllib.error.HTTPError as error:
            return error.code
    with ThreadPoolExecutor(2) as pool:
        print(sorted(map(str, pool.map(code, [said, said + said]))))
    """)
    env = make(Program, renderer, command=command)
    options = {"row": ROW, "branches": True, "parallel_requests": False}
    env.reset(options=options)
    time.sleep(1.0)  # both have asked
    action = renderer.encode({"role": "assistant", "content": "3"})
    *_, terminated, _, info = env.step(np.array(action))
    assert terminated and env.result.stdout == "['3', '400']\n"  # type: ignore[attr-defined]
    assert info["metrics"]["program/parallel_refused"] == 1
    env.close()


def test_an_answer_that_nobody_reads_is_named(play: Callable[..., Played]) -> None:
    command = script("""
    import socket, struct, time
    from urllib.parse import urlsplit
    where = urlsplit(os.environ["OPENAI_BASE_URL"])
    body = json.dumps({"messages": said}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: {where.netloc}\\r\\n"
        f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\n"
        f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    )
    asking = socket.create_connection((where.hostname, where.port))
    asking.sendall(head.encode() + body)
    time.sleep(0.5)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    asking.close()
    time.sleep(0.3)
    ask([{"role": "user", "content": "Something else."}])
    """)
    played = play(command=command)
    time.sleep(2.0)
    played.say("lost", "read")
    assert played.terminated and played.info["unreceived"] == [0]
    assert played.metrics["program/unreceived"] == 1


def test_a_program_is_pickled_between_episodes(renderer: Renderer) -> None:
    env = make(Files, renderer)
    for _ in range(2):
        env.reset(options={"row": ROW})
        env.step(np.array(renderer.encode({"role": "assistant", "content": "1"})))
        env = pickle.loads(pickle.dumps(env))
    env.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "plays one program, and there is none: set command"),
        ({"sandbox": "local"}, r"there is none: set command=\[\.\.\.\]\.$"),
        ({"command": ["true"], "function": calculate}, "two: the command.*Leave one out"),
        ({"function": 3}, "function must be a function or 'module:name', got 3"),
        ({"function": lambda base_url: None}, "cannot be called with.*'api_key'.*staticmethod"),
        ({"command": []}, "command must be"),
        ({"command": ["a", 1]}, "command must be"),
        ({"command": ["true"], "reasoning": "drop"}, "reasoning must be"),
        ({"command": ["true"], "shown": "answer"}, "shown must be"),
        ({"command": ["true"], "variables": {"A": 1}}, "variables"),
        ({"function": "nowhere:nothing"}, "nowhere"),
        ({"function": calculate, "sandbox": "local"}, "no sandbox holds it"),
        ({"command": ["true"], "sandbox": {"network": "full"}}, "network is 'full'.*: endpoint"),
        ({"command": ["true"], "sandbox": {"network": "none"}}, "network is 'none'.*: endpoint"),
        (
            {"command": ["true"], "sandbox": {"network": "endpoint", "endpoint": "127.0.0.1:8000"}},
            "endpoint is '127.0.0.1:8000'.*leave both out",
        ),
    ],
)
def test_settings_that_make_no_sense(
    renderer: Renderer, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        make(Program, renderer, **settings)


def test_a_class_whose_boxes_reach_more(renderer: Renderer) -> None:
    class Open(Program):
        """Declares a network of its own."""

        sandbox_spec = SandboxSpec(network="full")  # type: ignore[misc]  # as `Program` has it

    with pytest.raises(ConfigError, match=r"Open: sandbox\.network is 'full'"):
        Open(renderer, command=["true"])


def test_the_network_of_a_box_is_the_endpoint(renderer: Renderer) -> None:
    env = Program(renderer, command=["true"], sandbox={"network": "endpoint"})
    spec = env.sandbox_spec_for(ROW, env.box_settings.spec)
    assert spec.endpoint == f"127.0.0.1:{Endpoint.shared().port}"
    env.close()


def test_a_command_that_is_not_there(renderer: Renderer) -> None:
    env = make(Program, renderer, command=["no-such-program"])
    why = r"Program: command \['no-such-program'\] cannot be started.*on the PATH.*install"
    with pytest.raises(ConfigError, match=why):
        env.reset(options={"row": ROW})
    env.close()
    with pytest.raises(UsageError):
        _ = env.result  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", ["local", "landlock"])
def test_a_command_in_a_box(play: Callable[..., Played], backend: str) -> None:
    command = ["python3", "-c", script("print(ask(said)['content']); print(os.getcwd())")[2]]
    try:
        played = play(command=command, sandbox=backend)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    played.say("from the box")
    result = played.env.result  # type: ignore[attr-defined]
    assert result.stdout.startswith("from the box\n") and played.reward == 1.0
    assert result.exit_code == 0 and os.path.isabs(result.stdout.split()[-1])
