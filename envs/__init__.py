"""Environments: tools and rewards as a `gymnasium.Env` over token ids.

Where to begin reading: `builtin/arithmetic.py` (a whole environment), `environment/hooks.py` (what
a subclass overrides, and what it finds on `self`), `environment/environment.py` (`reset` and
`step`), `environment/turn.py` (what one turn does), `environment/episode_runner.py` (an episode in
messages), `environment/tokens/` (its tokens). `compose.py` and `mixture.py` make one environment
of several. The rooms, from the bottom up:

    records      messages, calls, turns and episodes, as they are recorded
    tools        what `@tool` marks: schemas, arguments, running calls, results, bugs
    rendering    messages to tokens and back, for any chat template
    boxes        an episode's sandbox, and the fresh one in which its work is graded
    environment  `Environment` and its hooks
    rubrics      rewards made of named parts
    checking     `check_env`
    builtin      the environments that Gymnast brings along
    programs     programs that own their loop, and the endpoint that they ask
    adapters     the games and questions of other packages as environments
"""

from gymnast.envs import rubrics
from gymnast.envs.checking.check import check_env
from gymnast.envs.compose import compose
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.solution import can_solve
from gymnast.envs.mixture import Mixture, MixtureOrder
from gymnast.envs.programs.environment import Program
from gymnast.envs.programs.running import ProgramResult
from gymnast.envs.records.assistant import call
from gymnast.envs.records.episode import CallRecord, Episode, Outcome, ToolError, Turn
from gymnast.envs.records.next_request import NextRequest
from gymnast.envs.records.score import Score
from gymnast.envs.registry import make, register, registered
from gymnast.envs.rendering.renderer import Renderer
from gymnast.envs.tools.marks import tool
from gymnast.gymnasium_ids import ENVIRONMENTS

for _id, _entry_point in ENVIRONMENTS.items():
    register(_id, _entry_point)

__all__ = [
    "CallRecord",
    "Environment",
    "Episode",
    "Mixture",
    "MixtureOrder",
    "NextRequest",
    "Outcome",
    "Program",
    "ProgramResult",
    "Renderer",
    "Score",
    "ToolError",
    "Turn",
    "call",
    "can_solve",
    "check_env",
    "compose",
    "make",
    "register",
    "registered",
    "rubrics",
    "tool",
]
