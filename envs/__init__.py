"""Environments: toolsets as `gymnasium.Env`s whose actions and observations are token ids.

Where to begin reading: `base.py` (the token level), `toolset.py` (the message level), `hooks.py`
(what a subclass overrides), `arithmetic.py` (a whole environment), `renderer.py` (messages to
tokens and back).
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
