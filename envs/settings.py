"""Checking what an environment is constructed with, before any episode."""

from typing import Any

from gymnast.errors import ConfigError

_AT_LEAST_ONE = ("max_turns", "max_tokens", "context_length")


def check_settings(environment: Any) -> None:
    """Check the settings that every environment has.

    Raises:
        ConfigError: One is out of its range or of the wrong type.
    """
    owner = type(environment).__name__
    for name in _AT_LEAST_ONE:
        value = getattr(environment, name)
        if value is None and name != "max_turns":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{owner}: {name} must be a whole number >= 1, got {value!r}.")
    timeout_s = environment.episode_timeout_s
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(f"{owner}: episode_timeout_s must be > 0 or None, got {timeout_s!r}.")
    prompt = environment.system_prompt
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError(f"{owner}: system_prompt must be a string or None, got {prompt!r:.100}.")
    renderer = environment.renderer
    if renderer is not None and not all(
        hasattr(renderer, name) for name in ("prompt", "parse", "observe", "stop_ids")
    ):
        raise ConfigError(
            f"{owner}: renderer is a {type(renderer).__name__}, not a Renderer. Wrap a tokenizer: "
            "Renderer(tokenizer), or use gymnast.envs.make, which does."
        )
    rows = environment.rows
    if rows is not None and not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise ConfigError(
            f"{owner}: rows has type {type(rows).__name__}; use a list of dicts or a dataset."
        )
