"""What an adapter says where its package is missing."""

import sys

import pytest

from gymnast.envs import make
from gymnast.errors import ConfigError


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # as if it were not installed
    with pytest.raises(ConfigError) as refused:
        make("reasoning_gym:never_named_before")
    assert "pip install 'gymnast-rl[reasoning-gym]'" in str(refused.value)
