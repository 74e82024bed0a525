"""What `gymnast envs` lists: where environments come from, and what adapters need."""

import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from gymnast.envs.adapters.packages import Package
from gymnast.envs.installed import adapters, environments
from gymnast.envs.registry import SCHEMES

ROOT = Path(__file__).parents[2]
KIT = """
from gymnast.envs import Environment

class Quiet(Environment):
    def reward(self, episode):
        return 0.0

Made = Environment.from_tools([], reward=Quiet.reward)
"""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two installed packages, which both have an environment kit/Quiet-v0."""
    for name in ("kit", "other-kit"):
        info = tmp_path / f"{name.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(
            f"[gymnast.environments]\nkit/Quiet-v0 = installed_{name.replace('-', '_')}:Quiet\n"
            f"{name}/Made-v0 = installed_kit:Made\n"
        )
    (tmp_path / "installed_kit.py").write_text(KIT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_environments_of_packages_are_listed_with_where_they_come_from(kit: Path) -> None:
    listed = {each.name: each for each in environments()}
    both = listed["kit/Quiet-v0"]
    assert "does not work: environment 'kit/Quiet-v0' is registered by package" in both.text
    assert sorted(both.origins) == ["kit 1.5", "other-kit 1.5"]
    assert listed["kit/Made-v0"].origins[0].startswith("kit 1.5: ")

    (kit / "other_kit-1.5.dist-info" / "entry_points.txt").unlink()
    (quiet,) = [each for each in environments() if each.name == "kit/Quiet-v0"]
    assert quiet.text == "(its class has no docstring)"
    assert quiet.origins == (f"kit 1.5: {kit / 'installed_kit.py'}",)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_adapter_says_what_it_needs(scheme: str) -> None:
    """Whether that is installed is seen without importing it; pip can install it by this name."""
    package = import_module(SCHEMES[scheme].partition(":")[0]).PACKAGE
    assert any(each.name.startswith(f"{scheme}:") for each in adapters())
    if package is None:
        return
    assert isinstance(package, Package)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = package.install.removeprefix("gymnast-rl[").removesuffix("]")
    needed = project["optional-dependencies"].get(extra, project["dependencies"])
    assert any(each.startswith(f"{package.name}>=") for each in needed)


def test_a_package_is_installed_or_can_be() -> None:
    assert Package("numpy", "numpy").state() == f"numpy {version('numpy')} is installed"
    assert Package("no-such-kit", "gymnast-rl[kit]").state() == (
        "no-such-kit is not installed: pip install 'gymnast-rl[kit]'"
    )
