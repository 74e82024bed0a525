"""Environments: toolsets as `gymnasium.Env`s whose actions and observations are token ids.

Where to begin reading: `arithmetic.py` (a whole environment), `hooks.py` (what a subclass
overrides), `toolset.py` (one turn in messages), `base.py` (the same in tokens), `renderer.py`
(messages to tokens and back). The rest, by what it serves:

    tokens      base, ending (the limits), spaces, blocking (sync over async)
    messages    toolset, hooks, user_code (calls them), rows, state, episode, messages, metrics
    tools       tools, schema, functions, arguments, calls, results, worker (the thread)
    renderer    renderer, chat_template, turns, plain_protocol
      calls     derivation, payloads, parsing, probes (what is rendered to find out)
      safety    safe_text, markers (no added token from text)
    by name     registry, check
"""

from gymnast.envs.base import Environment
from gymnast.envs.check import check_env
from gymnast.envs.episode import CallRecord, Episode, ToolError, Turn
from gymnast.envs.registry import make, register, registered
from gymnast.envs.renderer import Renderer
from gymnast.envs.tools import tool
from gymnast.envs.toolset import Outcome

register("gymnast/Arithmetic-v0", "gymnast.envs.arithmetic:Arithmetic")

__all__ = [
    "CallRecord",
    "Environment",
    "Episode",
    "Outcome",
    "Renderer",
    "ToolError",
    "Turn",
    "check_env",
    "make",
    "register",
    "registered",
    "tool",
]
