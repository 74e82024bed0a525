"""Environments: toolsets as `gymnasium.Env`s whose actions and observations are token ids.

Where to begin reading: `builtin/arithmetic.py` (a whole environment), `environment/hooks.py` (what
a subclass overrides), `environment/toolset.py` (one turn in messages), `environment/environment.py`
(the same in tokens), `rendering/renderer.py` (messages to tokens and back). The rest, by what it
serves:

    tokens      base, ending (the limits), spaces, blocking (sync over async)
    messages    toolset, hooks, user_code (calls them), rows, state, episode, messages, metrics
    tools       marks, tools, schema, functions, schema_tools, arguments, calls, results, bugs,
                worker (a thread)
    renderer    renderer, chat_template, probes (what is rendered to find out), plain_protocol
      calls     derivation, markup, parsing; what a call can look like: payloads, json_payloads,
                parameters, keyword_calls; values: argument_types, literals
      reading   reading, reasoning, response_template, spelled (text that spells a token)
      writing   turns (where they end), following (what comes then), skeletons, turn_ends
      safety    safe_text, markers (no added token from text)
    by name     registry
    check       check, check_report, example_arguments, differences
    boxes       box (the episode's), python, shell, code
      images    container (tools in an image), tool_program
      grading   code_rows, code_tasks, grading; judging/ runs in the boxes
"""

from gymnast.envs.checking.check import check_env
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.episode import CallRecord, Episode, Outcome, ToolError, Turn
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
