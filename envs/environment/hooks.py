"""The hooks: what a subclass of `Environment` overrides.

Every hook but `prepare_sandbox` may also be `async def`. The sync hooks and sync tools of an
environment run on one thread, so a database connection that `setup` opens can be used in all of
them; async ones run on the caller's event loop. Beyond `trainer.max_threads` environments (256),
several share a thread, where a sync call waits for those of the others.

An exception in a hook stops the run with a `UserCodeError` that carries the row, unless the policy
caused it: an episode that cannot be scored because the policy broke its box, or did not write a
file, gets reward 0 (docs/sandboxes.md).

What `self` has of the episode is in `episode_access.py`; `sandbox_spec`, `prepare_sandbox` and what
it has of boxes are in `boxes/access.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.boxes.access import BoxAccess
from gymnast.envs.environment.episode_access import EpisodeAccess
from gymnast.envs.environment.rows import pick_row
from gymnast.envs.records.episode import Episode, Turn
from gymnast.envs.tools.definition import Tool
from gymnast.types import Message


class Hooks(EpisodeAccess, BoxAccess):
    """The defaults: the row's prompt begins the episode, and nothing is rewarded.

    A small complete example, with state that belongs to one episode:

        class Counter(Environment):
            def setup(self, row):
                self.count = row["start"]

            @tool
            def increment(self) -> int:
                \"\"\"Add one to the counter.\"\"\"
                self.count += 1
                return self.count

            def reward(self, episode):
                return float(self.count == self.row["goal"])
    """

    rows: Sequence[Mapping[str, Any]] | None
    max_turns: int
    episode_timeout_s: float | None
    system_prompt: str | None
    solve_timeout_s: ClassVar[float | None] = 60.0  # for each message of `solve`; None: no limit
    _class_tools: ClassVar[Mapping[str, Tool]] = {}

    def setup(self, row: Mapping[str, Any]) -> Any:
        """Prepare an episode.

        Args:
            row: The episode's row; also `self.row`.

        Returns:
            The messages the episode begins with, or None for the row's `prompt`.
        """
        return None

    def hint(self, row: Mapping[str, Any]) -> Any:
        """Say what only a teacher sees, beside the prompt; see docs/distillation.md.

        Called after `setup` and `tools_for`, and only where a teacher asks for it
        (`reset(options={"hint": True})`); the policy never sees it.

        Args:
            row: The episode's row; also `self.row`.

        Returns:
            Messages, which the teacher finds before the prompt's own, after a system message and
            worked turns; or None, and the teacher sees what the policy sees.
        """
        return None

    def tools_for(self, row: Mapping[str, Any]) -> Any:
        """Return the tools of one episode: by default, the methods marked with `@tool`.

        Called after `setup`. A class that offers one more tool for some rows:

            class Safe(Environment):
                def tools_for(self, row):
                    tools = list(super().tools_for(row))
                    return tools if row["locked"] else [*tools, self.take]

                @tool
                def knock(self) -> str:
                    \"\"\"Knock at the door of the safe.\"\"\"
                    return "It sounds hollow."

                def take(self, what: str) -> str:
                    \"\"\"Take something out of the safe.\"\"\"
                    return f"You have the {what}."

        Args:
            row: The episode's row; also `self.row`.

        Returns:
            A list, whose entries may be functions and methods (marked with `@tool` or not),
            descriptions with a JSON schema (`{"name": ..., "description": ..., "parameters":
            {...}}`, as a server lists its tools), tools of LangChain, smolagents and the OpenAI
            Agents SDK, and what `super().tools_for(row)` returns.
            Calls of a tool that is only described need a `call_tool` of the class. `row["tools"]`
            and the setting `stop_tools` may name any of these tools.
        """
        return list(self._class_tools.values())

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run one tool call: by default, call the function or method of that name.

        Override it to run calls elsewhere, or to do something before or after each:

            class Remote(Environment):
                async def setup(self, row):
                    self.server = await connect(row["url"])

                async def tools_for(self, row):
                    return await self.server.list_tools()

                async def call_tool(self, name, arguments):
                    return await self.server.call_tool(name, arguments)

                async def cleanup(self):
                    await self.server.close()

        It gets the calls of offered tools whose arguments are valid. Time limits apply around it,
        and long results are cut afterwards. `await super().call_tool(name, arguments)` runs a sync
        tool on the episode's thread and an async one on the event loop.

        Args:
            name: The tool's name.
            arguments: Validated and coerced.

        Returns:
            The result: a string, or a value that JSON can hold.

        Raises:
            Exception: The policy is told of it, as of an exception in any tool.
        """
        runner = self._episode_runner
        return await runner.tools.call(name, arguments, runner.state.tools)

    def respond(self, message: Message) -> Any:
        """Say something to a message without tool calls: as a user, a game or a critic would.

        By default nothing is said, and such a message is the policy's answer, which ends the
        episode. A class that asks one question after the other:

            class Quiz(Environment):
                def setup(self, row):
                    self.left = list(row["questions"])
                    return [{"role": "user", "content": self.left.pop(0)}]

                def respond(self, message):
                    return [{"role": "user", "content": self.left.pop(0)}] if self.left else None

        It is called before `turn_reward`, also in the last turn that `max_turns` allows, so that
        the policy's last move counts; not for a message that was cut by its length. It may take as
        long as the episode has left. `self.messages` is the conversation before the message.
        `self.end_episode()` in it ends the episode after what it says.

        Args:
            message: The assistant's message, in OpenAI's shape.

        Returns:
            Messages of a user (or of the system, where the chat template takes them there), which
            are not trained on; or None, which ends the episode (`StopReason.answered`). The last
            message may have `tools`, a list as `tools_for` returns it: those are offered from
            then on, instead of the others. A chat template that lists tools once, before the
            conversation, refuses that (`TemplateError`).
        """
        return None

    def next_request(self, message: Message | None, cut: bool) -> Any:
        """Answer a program's request and return its next one, where the program has the loop.

        A class with this hook has no tools and no `respond`. `setup` starts the program, and its
        first request is the prompt of the episode; what `setup` returns is ignored. What each later
        request appends is the observation. The calls in a message are the program's to run, and an
        answer does not end the episode: the program does. In a program that asks twice:

            class Twice(Environment):
                def setup(self, row):
                    self.asked = 0

                def next_request(self, message, cut):
                    self.asked += 1
                    if self.asked > 2:
                        return None
                    said = {"role": "user", "content": f"Question {self.asked}"}
                    return NextRequest(0 if message else None, [said])

                def stop_program(self):
                    self.asked = 2

        It is called after `turn_reward`, with the turn in `self.episode`, and may take as long as
        the episode has left (`episode_timeout_s`). The environment calls `refuse` of a request that
        does not fit into `context_length` or `max_tokens`, or that the chat template refuses, and
        asks for another; of the first one, `reset` raises.

        Args:
            message: The assistant's message, which answers the pending request; None where none is
                pending: at first, and after one was refused.
            cut: Whether the message was cut by its length.

        Returns:
            The next `NextRequest` (`gymnast.envs`), in the order of arrival; or None if the program
            has ended, which ends the episode (`StopReason.environment`).

        Raises:
            NoRequest: The program ended before its first request. `reset` raises it also where the
                first call returns None.
        """
        return None

    def stop_program(self) -> Any:
        """End the program of an episode that ends for another reason than the program's end.

        Called at most once in an episode, where `setup` has succeeded and `next_request` has not
        returned None; before `reward`, or where the episode is given up, before `cleanup`.
        """
        return None

    def reward(self, episode: Episode) -> Any:
        """Score a finished episode; a class may also set a rubric (`gymnast.envs.rubrics`).

        Returns:
            A finite number; or named numbers (`{"format": 0.2, "answer": 0.8}`), whose sum is the
            reward and which are also in `info["reward_parts"]`; or a `Score`, which has metrics
            beside such numbers; or None if the episode cannot be judged: it is never trained on,
            and `info["no_reward"]` is True.
        """
        return 0.0

    def turn_reward(self, turn: Turn) -> Any:
        """Score one turn, after its tools have run, by a finite number."""
        return 0.0

    def text_rewards(self, turn: Turn) -> Any:
        r"""Reward places in what the policy wrote in a turn, on top of its `turn_reward`.

        Called after `turn_reward`. Each reward is paid at the token that completes the text up to
        a place, which algorithms by token (`reinforce_pp_tokens`) tell from the rest of the turn:

            def text_rewards(self, turn):
                return [(cited.end(), 0.1) for cited in re.finditer(r"\[\d+\]", turn.raw)]

        Returns:
            Pairs (end, reward) in any order: `turn.raw[:end]` is what earns the finite number
            `reward`, with 1 <= end <= len(turn.raw).
        """
        return ()

    def turn_state(self) -> Any:
        """Say what the next turn acts in, for algorithms that compare turns in equal states.

        Called before each turn: after `setup`, and after each turn that is not the last, which is
        then in `self.episode`. What makes the same actions have the same results belongs to it: the
        squares of a board, the room and what is carried. Members of a group are compared where
        their states are equal, so what differs in every episode does not belong to it.

        Returns:
            A value that can be hashed: a string, a number, a tuple of these. None: the
            turn is compared with no other.
        """
        return None

    def metrics(self, episode: Episode) -> Any:
        """Return further numbers about a finished episode, by name, to be averaged and logged."""
        return {}

    def solve(self, row: Mapping[str, Any]) -> Any:
        """Say how the episode is solved: the assistant messages of a perfect episode.

        Demonstrations and worked turns are made of it (docs/demonstrations.md). It is called after
        `setup`, the tools that it calls run, and the episode is scored as any other. A complete
        example, where a later message needs an earlier result:

            from gymnast.envs import Environment, call, tool

            class Shop(Environment):
                @tool
                def price(self, fruit: str) -> int:
                    \"\"\"Look up what a fruit costs, in cents.\"\"\"
                    return self.row["prices"][fruit]

                def reward(self, episode):
                    return float(str(self.row["answer"]) in episode.answer)

                def solve(self, row):
                    [price] = yield call("price", fruit=row["fruit"])
                    yield f"They cost {row['count'] * int(price['content'])} cents."

        What is yielded is one message: a text (an answer), `call("tool", argument=...)`, a list
        of these (a message with several calls), or a dict in OpenAI's shape. What `yield` gives
        back is the list of messages that the environment answered: one for each call, or what
        `respond` says.

        Returns:
            A list of messages, if no result is needed; or a generator, sync or async, that yields
            them; or None if this row has no solution. `async def` may return a list as well. The
            last message ends the episode: it is an answer without a call, or calls a stop tool.
            Each message may take `solve_timeout_s` seconds, a class attribute.
        """
        return None

    def cleanup(self) -> Any:
        """Undo `setup`. Called once after every episode, whatever happened in it."""
        return None

    def sample_row(self, rng: np.random.Generator) -> Any:
        """Choose the row for a `reset` that is given none: by default, one of `rows`.

        Raises:
            DataError: There are no rows.
        """
        return pick_row(self.rows, rng, type(self).__name__)

    def _hook(self, name: str) -> Callable[..., Any]:
        """What an episode calls as a hook: the method, or where classes are composed, all of them.

        What a class calls on `self` is its own method, composed or not.
        """
        method: Callable[..., Any] = getattr(self, name)
        return method
