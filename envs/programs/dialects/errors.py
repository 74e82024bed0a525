"""Errors as the APIs of OpenAI and Anthropic write them."""

from collections.abc import Mapping
from typing import Any

from gymnast.envs.programs.dialects.requests import Refused

_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}


def openai_error(refused: Refused) -> Mapping[str, Any]:
    """The body of an error of OpenAI's APIs."""
    code = refused.kind if refused.kind != "invalid_request_error" else None
    error = {
        "message": refused.message,
        "type": "invalid_request_error",
        "param": refused.param,
        "code": code,
    }
    return {"error": error}


def anthropic_error(refused: Refused) -> Mapping[str, Any]:
    """The body of an error of Anthropic's API."""
    kind = _ANTHROPIC_KINDS.get(refused.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": refused.message}}
