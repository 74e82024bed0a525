"""The example of BFCL on the benchmark itself, as its package on PyPI carries it."""

import asyncio
import importlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Renderer
from gymnast.trainers import play_solution, rollout
from gymnast.trainers.demonstrations.layout import with_tokens

pytestmark = pytest.mark.network
EXAMPLES = Path(__file__).parent.parent / "examples"
PACKAGE = "bfcl-eval==2026.3.23"  # without what it depends on, which the checker does not need
CATEGORIES = ["base", "miss_func", "miss_param", "long_context"]
# Says tools with a user's message.
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


@pytest.fixture(scope="module")
def bfcl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bfcl")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder)]
    subprocess.run([*pip, PACKAGE], check=True)
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("bfcl")


@pytest.mark.parametrize("category", CATEGORIES)
def test_solutions_pass_the_benchmarks_checker_and_half_of_them_do_not(
    category: str, bfcl: Any
) -> None:
    env = bfcl.Conversations(category=category)
    rows = env.rows[::20]
    assert len(env.rows) == 200
    for row in rows:
        played = asyncio.run(play_solution(env, row))
        assert (played.reward, played.stop_reason) == (1.0, "answered"), row["id"]
        asked = [message for message in played.messages if message["role"] == "user"]
        assert len(asked) == len(row["question"])

        class Lazy(bfcl.Conversations):  # type: ignore[misc]
            def solve(self, row: Any) -> Any:
                return ["Done."] * len(row["question"])

        lazy = Lazy(category=category)
        assert asyncio.run(play_solution(lazy, row)).reward == 0.0
        lazy.close()
    env.close()


def test_what_a_policy_writes_is_no_code_that_the_checker_runs(bfcl: Any, tmp_path: Path) -> None:
    """The checker evaluates calls as Python: names of tools and of arguments could be any."""
    name, key = (f"open({str(tmp_path / place)!r}, 'w').close" for place in ("name", "key"))
    written = [{"name": name, "arguments": {}}, {"name": "pwd", "arguments": {f"a={key}(), b": 1}}]

    env = bfcl.Conversations()

    async def played() -> Any:
        await env.areset(options={"row": env.rows[0]})
        for _ in env.rows[0]["question"]:
            await env.act({"role": "assistant", "content": "", "tool_calls": written})
            outcome = await env.act({"role": "assistant", "content": "Done."})
        assert outcome.terminated
        return outcome.reward

    assert asyncio.run(played()) == 0.0
    assert list(tmp_path.iterdir()) == []
    env.close()


@pytest.mark.parametrize("category", ["base", "miss_func"])
def test_a_policy_plays_it_in_tokens(category: str, bfcl: Any, tokenizer: Any) -> None:
    renderer = Renderer(tokenizer, chat_template=REPEATING)
    env = bfcl.Conversations(renderer, category=category)
    laid_out = with_tokens(asyncio.run(play_solution(env, env.rows[0])), renderer)
    actions = [laid_out.ids[slice(*span)] for span in laid_out.turns]
    played = asyncio.run(rollout(env, ScriptedAgent(actions), env.rows[0]))
    assert (played.reward, played.ids) == (1.0, laid_out.ids)
    late = [m for m in played.messages if "tools" in m]
    assert len(late) == len(env.rows[0].get("missed_function", {}))
    env.close()
