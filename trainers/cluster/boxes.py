"""Whether a node can open the boxes that an environment wants, found out before it plays."""

from gymnast.envs import Environment
from gymnast.envs.mixture import members_of
from gymnast.errors import ConfigError, SandboxUnavailable
from gymnast.threads import in_background
from gymnast.trainers.cluster.starting import Place
from gymnast.trainers.rollouts.environments import Environments


async def check_boxes(environments: Environments, place: Place) -> None:
    """Open a box, if the environments have any that are the same for all rows.

    Raises:
        ConfigError: None can be opened here.
    """
    driver = environments.take()
    environments.give_back(driver)
    env = driver.env.unwrapped
    for member in members_of(env) if isinstance(env, Environment) else []:
        if member.max_boxes is not None:
            await _open_one(member, place)


async def _open_one(env: Environment, place: Place) -> None:
    if type(env).sandbox_spec_for is not Environment.sandbox_spec_for:
        return  # rows say what is opened: their first episode here shows whether it can be
    try:
        box = await env.box_settings.pool().atake()
    except SandboxUnavailable as error:
        raise ConfigError(
            f"rollouts.backend: ray: {place} cannot open the sandboxes of {type(env).__name__}: "
            f"{error}. Set the backend {env.box_settings.backend!r} up on that node, or keep "
            "workers off it"
        ) from error
    await in_background(box.close)
