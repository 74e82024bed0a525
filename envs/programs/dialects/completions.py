"""OpenAI's completions: POST /v1/completions. A text is gone on with, without a chat template."""

import time
from collections.abc import Mapping
from typing import Any

from gymnast.envs.programs.dialects.chat import NO_LOGPROBS, ONE_ANSWER, read_stop, usage_of
from gymnast.envs.programs.dialects.dialect import (
    Asked,
    Dialect,
    Parameters,
    dumped,
    event,
    new_id,
)
from gymnast.envs.programs.dialects.errors import openai_error
from gymnast.envs.programs.dialects.requests import Answer, Request
from gymnast.envs.programs.dialects.telling import told
from gymnast.envs.programs.dialects.values import (
    flag,
    optional_count,
    optional_mapping,
    optional_text,
    refuse,
)

PARAMETERS = Parameters(
    used=("prompt", "model", "max_tokens", "stop", "stream", "stream_options"),
    unused=(
        "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logit_bias", "user",
    ),
    only={
        "n": ((1,), ONE_ANSWER),
        "best_of": ((1,), ONE_ANSWER),
        "logprobs": ((), NO_LOGPROBS),
        "echo": ((False,), "the prompt is not given back"),
        "suffix": (("",), "a text is gone on with, not filled in"),
    },
)  # fmt: skip


def read(body: Mapping[str, Any]) -> Asked:
    """Read the body of a request.

    Raises:
        Refused: It is no request, or asks for what cannot be given.
    """
    unused = PARAMETERS.read(body)
    given = body.get("prompt")
    prompt = given[0] if isinstance(given, list) and len(given) == 1 else given
    if not isinstance(prompt, str) or not prompt:
        refuse("prompt", "one text that is not empty", given)
    options = optional_mapping(body.get("stream_options"), "stream_options")
    request = Request(
        messages=[{"role": "user", "content": prompt}],
        plain=True,
        max_tokens=optional_count(body.get("max_tokens"), "max_tokens"),
        stop=read_stop(body.get("stop")),
        unused=unused,
    )
    return Asked(
        request,
        optional_text(body.get("model"), "model") or "policy",
        flag(body.get("stream"), "stream"),
        {"usage": flag(options.get("include_usage"), "stream_options.include_usage")},
    )


def write(asked: Asked, answer: Answer) -> bytes:
    """Write an answer: the JSON of one completion, or the events of its chunks."""
    seen = told(answer, asked.request.stop)
    frame: dict[str, Any] = {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": asked.model,
    }
    finish = "length" if seen.finish == "length" else "stop"
    if not asked.stream:
        choices = [_choice(seen.content, finish)]
        return dumped({**frame, "choices": choices, "usage": usage_of(answer)})
    parts = [event({**frame, "choices": [_choice(seen.content, None)]})] if seen.content else []
    parts.append(event({**frame, "choices": [_choice("", finish)]}))
    if asked.details["usage"]:
        parts.append(event({**frame, "choices": [], "usage": usage_of(answer)}))
    return b"".join([*parts, b"data: [DONE]\n\n"])


def _choice(text: str, finish: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


COMPLETIONS = Dialect("completions", PARAMETERS, read, write, openai_error)
