"""Programs in vectors of Gymnasium, whose drivers know of one context."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from gymnast.envs import Renderer
from gymnast.types import StopReason
from program_fixtures import left_behind, script

pytestmark = pytest.mark.usefixtures("only_of_programs")

ROWS = [{"prompt": "What is 1 plus 2?"}]
ONCE = script("print(ask(said)['content'])")
TWICE = script("ask(said); ask([{'role': 'user', 'content': 'Summarise.'}])")


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return str(folder)


def a_vector(mode: str, folder: str, command: list[str]) -> Any:
    own = {} if mode == "sync" else {"shared_memory": False}
    return gymnasium.make_vec(
        *("gymnast/Program-v0", 2, mode),
        vector_kwargs=own,
        renderer=folder,
        rows=ROWS,
        command=command,
    )


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("command", "terminated"),
    [pytest.param(ONCE, True, id="one"), pytest.param(TWICE, False, id="more")],
)
def test_programs_form_a_vector(
    mode: str, command: list[str], terminated: bool, tokenizer_folder: str, renderer: Renderer
) -> None:
    """One that opens another context is truncated there; it was ended, and its reward knows."""
    envs = a_vector(mode, tokenizer_folder, command)
    prompt = renderer.prompt([{"role": "user", "content": ROWS[0]["prompt"]}])
    action = np.array(renderer.encode({"role": "assistant", "content": "It is 3."}))
    reason = StopReason.environment if terminated else StopReason.context
    try:
        prompts, infos = envs.reset(seed=1)
        for _ in range(2):
            assert [list(ids) for ids in prompts] == [prompt] * 2
            assert list(infos["branch"]) == [0, 0]
            _, rewards, ended, cut, infos = envs.step((action, action))
            assert list(ended) == [terminated] * 2 and list(cut) == [not terminated] * 2
            assert list(rewards) == [float(terminated)] * 2
            assert list(infos["stop_reason"]) == [reason] * 2
            prompts, _, ended, cut, infos = envs.step((action, action))  # which resets
            assert not any(ended) and not any(cut)
    finally:
        envs.close()
    assert not left_behind()
