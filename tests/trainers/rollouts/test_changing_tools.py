"""Tools that change within a conversation: offered where a template can say so, else refused."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import Endpoint
from chat_fixtures import says as answers
from gymnast.agents import ChatAgent, ScriptedAgent
from gymnast.envs import Environment, Outcome, Renderer, call, tool
from gymnast.errors import ConfigError, TemplateError, ToolDefinitionError
from gymnast.trainers import play_solution, rollout
from gymnast.trainers.demonstrations.layout import with_tokens
from gymnast.types import StopReason

WITHOUT = Path(__file__).parents[2] / "envs/rendering/chat_templates/without_tools.jinja"
# Lists the tools before the last message where that is a user's, as Mistral's do.
REPEATING = """\
{%- for m in messages %}
{%- if loop.last and tools and m.role == 'user' %}<tools>{{ tools | tojson }}</tools>
{% endif %}<|im_start|>{{ m.role }}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ROW = {"prompt": "Open the safe."}


class Safe(Environment):
    """A safe whose lid can be opened once somebody has said the word."""

    def tools_for(self, row: Any) -> Any:
        return [self.knock]

    def knock(self) -> str:
        """Knock at the safe."""
        return "It sounds hollow."

    def open(self, code: str) -> str:
        """Open the lid.

        Args:
            code: Its code.
        """
        self.opened = code
        self.end_episode()
        return "It is open."

    def respond(self, message: Any) -> Any:
        if len(self.tools) > 1:
            return None
        return [{"role": "user", "content": "Now.", "tools": [self.knock, self.open]}]

    def reward(self, episode: Any) -> float:
        return float(getattr(self, "opened", "") == "0042")

    def solve(self, row: Any) -> Any:
        yield call("knock")
        yield "Please."
        yield call("open", code="0042")


def names(tools: Any) -> list[str]:
    return [each["function"]["name"] for each in tools]


@pytest.fixture(scope="module", params=["repeating", "without_tools"])
def own(request: pytest.FixtureRequest, tokenizer: Any) -> Renderer:
    template = REPEATING if request.param == "repeating" else WITHOUT.read_text()
    return Renderer(tokenizer, chat_template=template)


def test_a_template_that_says_tools_with_a_message_offers_others_from_there(own: Renderer) -> None:
    solved = asyncio.run(play_solution(Safe(), ROW))
    laid_out = with_tokens(solved, own)
    actions = [laid_out.ids[slice(*span)] for span in laid_out.turns]
    env = Safe(own)
    played = asyncio.run(rollout(env, ScriptedAgent(actions), ROW))
    assert (played.reward, played.stop_reason) == (1.0, StopReason.environment)
    assert played.ids == laid_out.ids and played.action_mask == laid_out.action_mask
    for trajectory in (solved, laid_out, played):
        assert names(trajectory.tools) == ["knock"]
        (changed,) = [m for m in trajectory.messages if "tools" in m]
        assert (changed["content"], names(changed["tools"])) == ("Now.", ["knock", "open"])
        assert json.loads(json.dumps(trajectory.messages)) == trajectory.messages
    (_, before), (after, _) = played.turns[1:]
    said = own.decode(played.ids[before:after])
    assert "Open the lid." in said and said.count("Now.") == 1
    assert "Open the lid." not in own.decode(played.ids[:before])
    assert env.opened == "0042"  # text, as the schema of the new tool has it, and no number


def test_the_plain_protocol_says_the_change_after_the_message(tokenizer: Any) -> None:
    own = Renderer(tokenizer, chat_template=WITHOUT.read_text())
    env = Safe(own)
    prompt, _ = env.reset(options={"row": ROW})
    action = own.encode({"role": "assistant", "content": "Please."})
    observation, *_ = env.step(action)
    said = own.decode(observation.tolist())
    assert "Now.\n\nFrom now on you can call these tools:\nknock()" in said
    assert "open(code: string): Open the lid." in said
    assert [*prompt, *action, *observation] == own.prompt(env.messages, env.tools[:1])


def test_a_template_that_lists_tools_once_refuses_others(
    renderer: Renderer, say: Callable[..., list[int]]
) -> None:
    env = Safe(renderer)
    env.reset(options={"row": ROW})
    message = r"lists the tools once, before the .* \(knock, open\) would .* Offer all tools from"
    with pytest.raises(TemplateError, match=message):
        env.step(say("Please."))
    with pytest.raises(TemplateError, match="lists the tools once"):
        with_tokens(asyncio.run(play_solution(Safe(), ROW)), renderer)


def test_worked_turns_cannot_show_tools_that_change(tokenizer: Any) -> None:
    """The plain protocol would say the others before an episode that does not offer them."""
    own = Renderer(tokenizer, chat_template=WITHOUT.read_text())
    env = Safe(own, rows=[ROW, {"prompt": "Open it."}], worked_turns=1)
    with pytest.raises(ConfigError, match=r"worked_turns: Safe\.respond changes the tools .* to 0"):
        env.reset(options={"row": ROW})


def test_the_same_tools_are_no_change(renderer: Renderer, say: Callable[..., list[int]]) -> None:
    class Same(Safe):
        def respond(self, message: Any) -> Any:
            return [{"role": "user", "content": "Go on.", "tools": [self.knock]}]

    env = Same(renderer)
    env.reset(options={"row": ROW})
    env.step(say("Please."))
    assert env.messages[-1] == {"role": "user", "content": "Go on."}


def test_an_endpoint_is_sent_the_tools_of_each_turn(endpoint: Endpoint) -> None:
    endpoint.answers(answers("Please."), answers("", ("open", '{"code": "0042"}')))
    agent = ChatAgent("m", base_url=endpoint.url, api_key_env=None)
    played = asyncio.run(rollout(Safe(), agent, ROW))
    assert played.reward == 1.0
    sent = [names(request["tools"]) for request in endpoint.requests]
    assert sent == [["knock"], ["knock", "open"]]
    assert all("tools" not in m for request in endpoint.requests for m in request["messages"])


def test_what_cannot_be_a_tool_is_the_authors_mistake(play: Callable[..., list[Outcome]]) -> None:
    class Described(Safe):
        def respond(self, message: Any) -> Any:
            shut = {"name": "shut", "description": "Shut.", "parameters": {"type": "object"}}
            return [{"role": "user", "content": "Now.", "tools": [shut]}]

    with pytest.raises(ToolDefinitionError, match=r"Described.respond returned a description of"):
        play(Described(), {"role": "assistant", "content": "Please."})


def test_a_stop_tool_that_comes_later_ends_the_episode(play: Callable[..., list[Outcome]]) -> None:
    class Later(Environment):
        @tool
        def wait(self) -> str:
            """Wait."""
            return "..."

        @tool(stop=True)
        def leave(self) -> str:
            """Leave."""
            return "Bye."

        def tools_for(self, row: Any) -> Any:
            return [each for each in super().tools_for(row) if each.name == "wait"]

        def respond(self, message: Any) -> Any:
            later = list(super().tools_for(self.row))
            return [{"role": "user", "content": "You may leave.", "tools": later}]

    leaves = {"role": "assistant", "content": "", "tool_calls": [{"name": "leave"}]}
    *_, last = play(Later(), {"role": "assistant", "content": "Well?"}, leaves)
    assert last.info["stop_reason"] == StopReason.stop_tool
