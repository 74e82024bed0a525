"""An agent behind an endpoint: it answers in messages, and can be evaluated but not trained."""

import inspect
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gymnast.chat_client import OPENAI_URL, ChatClient
from gymnast.chat_protocol import Usage, shown_url
from gymnast.errors import ConfigError
from gymnast.lookup import did_you_mean
from gymnast.types import Completion, Message, Sampling

LONGEST_CHECK_S = 10.0
SET_HERE = ("model", "messages", "tools", "stream")  # fields of a request


class ChatAgent:
    """Plays by the chat completions of an OpenAI-compatible endpoint.

        agent = ChatAgent("gpt-5-mini", prompt_price=0.25, completion_price=2.0)
        trajectory = await rollout(env, agent, row)
        print(trajectory.reward, trajectory.metrics["chat/cost"])

    It has neither token ids nor log-probabilities: `Trajectory.ids` is empty, and nothing can be
    trained on. `rollout` and `collect` play with it in messages (`Environment.act`).

    Args:
        model: The model's name at the endpoint.
        parameters: Further fields of each request, such as `{"reasoning_effort": "low"}`. They
            take precedence over the sampling's; None leaves a field out.
        **client: Keywords of `gymnast.chat_client.ChatClient`: `base_url`, `api_key_env`,
            `timeout_s`, `attempts`, `max_concurrent`, `requests_per_minute`, `prompt_price`,
            `completion_price`.

    Raises:
        ConfigError: A setting does not hold.
    """

    def __init__(
        self, model: str, *, parameters: Mapping[str, Any] | None = None, **client: Any
    ) -> None:
        self.client = ChatClient(model, **client)
        self.parameters = _checked(parameters)

    @property
    def usage(self) -> Usage:
        """What all requests took so far."""
        return self.client.usage

    def check_reached(self) -> None:
        """Ask the endpoint for its models once; whatever it answers, it is there.

        Raises:
            ConfigError: Nothing answers.
        """
        import openai

        client, longest = self.client, min(self.client.timeout_s, LONGEST_CHECK_S)
        asking = openai.OpenAI(
            api_key=client.key() or "none",
            base_url=client.base_url,
            timeout=longest,
            max_retries=0,
        )
        try:
            with asking:
                asking.models.list()
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            kind = type(cause).__name__  # by name: versions of openai use httpx or httpx2
            if kind not in ("ConnectError", "ConnectTimeout"):
                return  # it has taken the connection
            late = kind == "ConnectTimeout"
            why = f"no connection within {longest:g} s" if late else _in_words(cause)
            url = shown_url(client.base_url or os.environ.get(OPENAI_URL))
            raise ConfigError(
                f"endpoint: nothing answers at {url} ({why}); is the server running, and are host "
                "and port right?"
            ) from None
        except (openai.OpenAIError, ValueError):
            return  # requests for messages say what there is to say

    async def reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling | None = None,
    ) -> Message:
        """The next message of a conversation; see `ChatClient.complete`."""
        return await self.speaker(sampling)(messages, tools)

    def speaker(self, sampling: Sampling | None = None) -> "ChatSpeaker":
        """Who says the messages of one episode, and counts what they take.

        Args:
            sampling: How to sample; temperature, top_p and the most tokens are sent.
        """
        return ChatSpeaker(self.client, _fields(sampling) | self.parameters)

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """Refused: an endpoint has no token ids.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "agent: a ChatAgent answers in messages and has no token ids, so it can be evaluated, "
            "not trained; play it with rollout or collect in an Environment without wrappers"
        )

    def awake(self) -> AbstractContextManager[None]:
        """Nothing of it computes in this process."""
        return nullcontext()


class ChatSpeaker:
    """Says the assistant messages of one episode.

    Args:
        client: Of the endpoint.
        parameters: Further fields of each request.

    Attributes:
        usage: What the episode took so far.
    """

    def __init__(self, client: ChatClient, parameters: Mapping[str, Any]) -> None:
        self._client, self._parameters = client, parameters
        self.usage = Usage()
        self._seconds = 0.0

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> Message:
        """The next assistant message.

        Raises:
            ConfigError: The endpoint will not answer: its key is wrong, say.
            EndpointError: The endpoint is broken.
        """
        started = time.perf_counter()
        reply = await self._client.complete(messages, tools, self._parameters)
        self._seconds += time.perf_counter() - started
        self.usage += reply.usage
        return reply.message

    def metrics(self) -> dict[str, float]:
        """What the episode took, under the names of `Trajectory.metrics`."""
        counted = {f"chat/{name}": float(value) for name, value in vars(self.usage).items()}
        return {**counted, "time/model_s": self._seconds}


def _fields(sampling: Sampling | None) -> dict[str, Any]:
    if sampling is None:
        return {}
    fields = {"temperature": sampling.temperature, "max_tokens": sampling.max_new_tokens}
    return fields | ({"top_p": sampling.top_p} if sampling.top_p < 1 else {})


def _in_words(error: BaseException) -> str:
    """An error of the system as people say it: "connection refused"."""
    text = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    return text[0].lower() + text[1:]


def _checked(parameters: Any) -> dict[str, Any]:
    """Further fields of requests, as a setting gives them.

    Raises:
        ConfigError: They are no mapping, cannot be sent, or one of them is not theirs to set.
    """
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise ConfigError(
            f"parameters: must be a mapping of further fields of the requests, such as "
            f"{{reasoning_effort: low}}, got {parameters!r:.100}"
        )
    for name in parameters:
        if name in SET_HERE:
            raise ConfigError(f"parameters.{name}: is not to be set here; leave it out")
    try:
        json.dumps(dict(parameters), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"parameters: must be what JSON can hold, got {parameters!r:.100} ({error})"
        ) from error
    return dict(parameters)


def make_chat_agent(settings: Mapping[str, Any]) -> ChatAgent:
    """The agent that `agent: {backend: chat, ...}` of a YAML names.

    Args:
        settings: Keywords of `ChatAgent`.

    Raises:
        ConfigError: One is unknown, missing or wrong.
    """
    known = [*list(inspect.signature(ChatClient).parameters), "parameters"]
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known) or f" It has: {', '.join(known)}."
            raise ConfigError(f"agent.{name}: chat has no such setting.{hint}")
    if "model" not in settings:
        raise ConfigError("agent.model: is required with agent.backend=chat; name a model")
    try:
        agent = ChatAgent(**settings)
        agent.client.key()  # whether it is there
        return agent
    except ConfigError as error:
        of_a_setting = str(error).partition(":")[0].partition(".")[0] in known
        raise ConfigError(f"agent.{error}" if of_a_setting else str(error)) from None
