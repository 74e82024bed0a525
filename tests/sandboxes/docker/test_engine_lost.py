"""Who broke a container: what was done in it or to it alone, or the loss of its engine."""

import asyncio
import signal
from typing import Any

import pytest

from engine_fixtures import OwnEngine
from gymnast.envs import Environment, tool
from gymnast.sandboxes import DockerSandbox, SandboxSpec
from gymnast.sandboxes.docker.engine import engine_client
from gymnast.types import StopReason
from pool_fixtures import eventually

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def engine(own_engine: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DOCKER_HOST", own_engine.address)
    yield own_engine
    engine_client().close()


def test_a_container_that_breaks_alone_has_not_lost_its_engine(
    engine: OwnEngine, docker_image: str
) -> None:
    with DockerSandbox(image=docker_image) as box, DockerSandbox(image=docker_image) as other:
        assert not box.engine_lost()
        engine_client().kill(box.container_id)
        assert eventually(lambda: not box.ping())
        assert not box.engine_lost()
        assert other.ping() and not other.engine_lost()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_engine_that_is_stopped_is_lost_to_its_containers_for_good(
    number: signal.Signals, engine: OwnEngine, docker_image: str
) -> None:
    with DockerSandbox(image=docker_image) as box:
        engine.stop(number)
        assert box.engine_lost()
        engine.start()
        assert box.engine_lost()
    with DockerSandbox(image=docker_image) as box:
        assert not box.engine_lost()


class Boxed(Environment):
    """Runs code in a box."""

    sandbox_spec = SandboxSpec()

    @tool
    def python(self, code: str) -> str:
        """Run code."""
        return self.sandbox.python(code).stdout


@pytest.mark.parametrize("restarted", [True, False])
def test_an_episode_whose_engine_is_lost_is_tried_again_and_one_that_breaks_its_box_is_not(
    restarted: bool, engine: OwnEngine, docker_image: str, calls: Any
) -> None:
    spins = "import os\nwhile True: pass"

    async def run() -> Any:
        env = Boxed(sandbox={"backend": "docker", "image": docker_image, "timeout_s": 60})
        await env.areset(options={"row": {"prompt": "Go."}})
        await env.act(calls(("python", {"code": "1"})))
        act = asyncio.create_task(env.act(calls(("python", {"code": spins}))))
        await asyncio.sleep(0.5)
        if restarted:
            await asyncio.to_thread(engine.stop, signal.SIGKILL)
            await asyncio.to_thread(engine.start)
        else:
            engine_client().remove_container(env.sandbox.target().box.container_id, force=True)  # type: ignore[attr-defined]
        outcome = await act
        await env.aclose()
        return outcome

    outcome = asyncio.run(run())
    assert (outcome.info["stop_reason"] is StopReason.error) == restarted
    assert outcome.info["metrics"]["sandbox/broken"] == float(not restarted)
