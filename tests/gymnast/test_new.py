"""`gymnast new`: the package that it makes is sound as it stands, and which names it refuses."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from command_fixtures import CommandLine
from gymnast.commands.new import FILES

ROOT = Path(__file__).parents[2]
ID = "dice-game/DiceGame-v0"
LONGEST = "a" * 15 + "-" + "b" * 16
URL = "git+https://example.org/gymnast.git"


def run(*command: str, cwd: Path | str = ".", **variables: str) -> str:
    """What a Python program prints, which ends well."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(package: Path, folder: Path) -> str:
    """Install a package into a folder, without an index; returns the folder."""
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run("pip", "install", *offline, "--target", str(folder), str(package.resolve()))
    return str(folder)


def test_the_package_passes_its_own_test_and_the_check_once_it_is_installed(
    gymnast: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gymnast("new", "dice-game", "--gymnast", URL)
    assert made.code == 0, made.errors
    assert made.output == (
        f"dice-game/ is a package with the environment {ID}\n"
        "its module is dice_game, as a module's name has no dashes\n"
        "to install it: pip install -e './dice-game[test]'\n"
        f"to check it: gymnast check {ID}\n"
    )
    site = installed(Path("dice-game"), tmp_path / "site")
    passed = run("pytest", "-q", "-p", "no:cacheprovider", cwd="dice-game", PYTHONPATH=site)
    assert "5 passed" in passed
    monkeypatch.syspath_prepend(site)
    checked = gymnast("check", ID)
    assert checked.code == 0, checked.errors
    assert (
        "  solve           1 (answered with message 2) on each of 3 rows\n"
        "  doing nothing   0 (answered with message 1) on each of 3 rows\n"
    ) in checked.output
    listed = gymnast("envs").output
    assert re.search(rf"\n{ID} .*\n +dice-game 0\.1\.0: .*/dice_game/environment\.py\n", listed)
    config = Path("dice-game/train.yaml")
    assert yaml.safe_load(config.read_text())["environment"]["id"] == ID
    short = ["model={name: 'tiny:'}", "trainer.steps=1", "evaluation.rows=2", "warmup.steps=1"]
    few = ["warmup.rows_per_step=2", "trainer.rows_per_step=2", "algorithm.group_size=2"]
    trained = gymnast("train", str(config), *short, *few, "sampling.max_new_tokens=4")
    assert trained.code == 0, trained.errors
    for name in ("dice_game", "dice_game.environment"):
        sys.modules.pop(name)


@pytest.mark.parametrize("name", ["dice-game", "x", LONGEST])
def test_its_files_are_clean_for_ruff(gymnast: CommandLine, name: str) -> None:
    assert gymnast("new", name).code == 0
    run("ruff", "check", "--no-cache", name)
    run("ruff", "format", "--no-cache", "--check", name)


def test_git_ignores_none_of_its_files(gymnast: CommandLine) -> None:
    for name in ("dist", "runs"):
        gymnast("new", name)
        git = ["git", "-C", name]
        subprocess.run([*git, "init", "--quiet"], check=True)
        subprocess.run([*git, "add", "."], check=True)
        added = subprocess.run([*git, "ls-files"], capture_output=True, text=True, check=True)
        assert len(added.stdout.splitlines()) == len(FILES)


def test_a_file_of_the_package_is_checked_before_it_is_installed(gymnast: CommandLine) -> None:
    gymnast("new", "lone")
    assert gymnast("check", "lone/src/lone/environment.py:Lone").code == 0


def test_its_files_name_each_other(gymnast: CommandLine) -> None:
    gymnast("new", "dice-game", "--gymnast", URL)
    package = Path("dice-game")
    written = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert written == {each.replace("$module", "dice_game") for each in FILES.values()}
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    point = {ID: "dice_game.environment:DiceGame"}
    assert project["entry-points"] == {"gymnast.environments": point}
    job = yaml.safe_load((package / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert job["env"] == {"GYMNAST": f"gymnast-rl @ {URL}"}
    assert steps[0] == 'pip install "$GYMNAST"' and steps[-1] == f"gymnast check {ID}"
    readme = (package / "README.md").read_text()
    assert f"pip install 'gymnast-rl[demo,lora] @ {URL}'\n" in readme
    assert all(step in readme for step in steps[2:])


COMMIT = "d482f54"
ORIGINS = {
    "a repository": (
        {"url": "https://example.org/g.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
        f"git+https://example.org/g.git@{COMMIT}",
    ),
    "a wheel": (
        {"url": "https://example.org/gymnast_rl-1-py3-none-any.whl", "archive_info": {}},
        "https://example.org/gymnast_rl-1-py3-none-any.whl",
    ),
    "a wheel of this machine": ({"url": "file:///gymnast_rl-1-py3-none-any.whl"}, None),
    "a folder": ({"url": "file:///tmp", "dir_info": {}}, None),
    "a clone": ({"url": "file://{clone}", "dir_info": {}}, "git+https://example.org/g.git"),
    "a package index": (None, None),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_it_says_where_others_find_gymnast(
    gymnast: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    """As pip has written down where this one came from."""
    written, expected = ORIGINS[origin]
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    secret = "https://user:password@example.org/g.git"
    subprocess.run([*git, "remote", "add", "origin", secret], check=True)
    info = tmp_path / "site" / "gymnast_rl-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gymnast-rl\nVersion: 0\n")
    if written is not None:
        text = json.dumps(written).replace("{clone}", str(tmp_path))
        (info / "direct_url.json").write_text(text)
    monkeypatch.syspath_prepend(str(info.parent))
    made = gymnast("new", "lone")
    files = Path("lone/README.md").read_text() + Path("lone/.github/workflows/test.yml").read_text()
    assert "password" not in files
    if expected is not None:
        assert f"'gymnast-rl[demo,lora] @ {expected}'" in files
        assert f'GYMNAST: "gymnast-rl @ {expected}"' in files
        assert "GYMNAST" not in made.output
        return
    assert "pip install 'path/to/gymnast[demo,lora]'" in files
    assert "GYMNAST: ${{ vars.GYMNAST }}  #" in files
    assert "into the variable GYMNAST of its repository; --gymnast URL does both" in made.output


RULE = "a package's name is at most 32 lowercase letters, digits and single dashes or underscores"
REFUSED = {
    "DiceGame": f"is 'DiceGame'; {RULE}, and begins with a letter. Did you mean dice-game?",
    "my dice": f"is 'my dice'; {RULE}, and begins with a letter. Did you mean my-dice?",
    "dice--game": f"is 'dice--game'; {RULE}, and begins with a letter. Did you mean dice-game?",
    "../dice": f"is '../dice'; {RULE}, and begins with a letter. Did you mean dice?",
    "2048": f"is '2048'; {RULE}, and begins with a letter\n",
    "würfel": f"is 'würfel'; {RULE}",
    "": f"is ''; {RULE}",
    LONGEST + "b": f"is '{LONGEST}b'; {RULE}, and begins with a letter\n",
    "random": "is 'random', but Python has a module random; take another",
    "class": "is 'class', but class is a word of Python's; take another",
    "none": "is 'none', but None is a word of Python's; take another",
    "environment": "its class would be called Environment, as one that it imports; take another",
    "any": "its class would be called Any, as one that it imports; take another",
    "tests": "is 'tests', but the package has a folder tests; take another",
    "reasoning_gym": "but names of environments that begin with reasoning_gym: are an adapter's",
    "reasoning-gym": "but names of environments that begin with reasoning_gym: are an adapter's",
    "numpy": "is 'numpy', but a package of this name is installed (numpy ",
    "annotated-types": "but a package of this name is installed (annotated-types ",
    "dateutil": "is 'dateutil', but a module dateutil is installed (",
    "here": "NAME: here is there already; take another name",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_cannot_be_is_refused(gymnast: CommandLine, name: str) -> None:
    Path("here").mkdir()
    ended = gymnast("new", name)
    assert ended.code == 2 and ended.errors.count("\n") == 1, ended.errors
    assert ended.errors.startswith("error: NAME: ") and REFUSED[name] in ended.errors
    assert {path.name for path in Path().iterdir()} == {"here", "rows.jsonl", "run.yaml", "shop.py"}


def test_options_that_are_wrong_are_refused(gymnast: CommandLine) -> None:
    for url in ("gymnast", "https://a b", "git+https://a'b"):
        assert gymnast("new", "lone", "--gymnast", url).errors == (
            "error: --gymnast: must be a URL, such as git+https://... or file:///..., got "
            f"{url!r}\n"
        )
    assert "No such option: --force" in gymnast("new", "lone", "--force").errors
    assert "Missing argument 'NAME'" in gymnast("new").errors
    assert not Path("lone").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(gymnast: CommandLine, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    said = gymnast("new", "lone").errors
    tmp_path.chmod(0o700)
    assert said == "error: NAME: lone cannot be made here: Permission denied\n"


@pytest.mark.slow  # an environment of its own, with a torch of its own
@pytest.mark.commands
def test_the_steps_of_its_workflow_pass_in_a_fresh_virtual_environment(tmp_path: Path) -> None:
    """Gymnast is installed as a wheel of what is committed, which has the package's files."""
    clone, venv = tmp_path / "gymnast", tmp_path / "venv"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    run("venv", str(venv))
    ours = str(Path(sys.executable).parent)
    others = [each for each in os.environ["PATH"].split(os.pathsep) if each != ours]
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": os.pathsep.join([f"{venv}/bin", *others]),
        "PIP_CONSTRAINT": str(clone / "constraints.txt"),
    }

    def do(command: str, folder: Path, **variables: str) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=folder,
            env=settings | variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    where = f"file://{clone}"
    do(f"pip install 'gymnast-rl @ {where}' && gymnast new dice-game --gymnast {where}", tmp_path)
    package = tmp_path / "dice-game"
    job = yaml.safe_load((package / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    for step in job["steps"]:
        if "run" in step:
            do(step["run"], package, **job["env"])
    do("pip install mypy && mypy --strict src tests", package)
