"""Limits are checked where they are named."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from gymnast.errors import UsageError
from gymnast.sandboxes import SandboxSpec, open_sandbox

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"memory_bytes": 1}, "memory_bytes is 1; it must be a whole number from 33554432 on"),
        ({"processes": 0}, "processes is 0; it must be a whole number from 1 on"),
        ({"processes": True}, "processes is True"),
        ({"cpus": 0}, "cpus is 0; it must be a number of cores from 0.01 on"),
        ({"cpus": float("nan")}, "cpus is nan"),
        ({"timeout_s": -1}, "timeout_s is -1; it must be a number of seconds above 0"),
        ({"timeout_s": float("inf")}, "timeout_s is inf"),
        ({"timeout_s": "5"}, "timeout_s is '5'"),
        ({"disk_bytes": 1.5}, "disk_bytes is 1.5"),
        ({"image": " "}, "image is ' '; it must be a text with something in it"),
        ({"env": {"A": 1}}, r"env\['A'\] is 1"),
        ({"network": "host"}, "network is 'host'; it must be one of 'none', 'endpoint', 'full'"),
        ({"root": True}, "root is True; it must be one of 'read_only', 'writable'"),
        ({"network": "endpoint"}, "network is 'endpoint' and endpoint is None; the network"),
        ({"endpoint": "127.0.0.1:8000"}, "network is 'none' and endpoint is '127.0.0.1:8000'"),
        ({"network": "endpoint", "endpoint": "10.0.0.5:8000"}, "endpoint is '10.0.0.5:8000'; it"),
        ({"network": "endpoint", "endpoint": "127.0.0.1:80"}, "a port from 1024 to 65535"),
        ({"network": "endpoint", "endpoint": "127.0.0.1:65536"}, "a port from 1024 to 65535"),
        ({"user": "nobody"}, "user is 'nobody'; it must be 'root' or numbers as in '1000' or"),
        ({"user": 0}, "user is 0; it must be a text"),
        ({"memory_mb": 5}, "a sandbox has no limit 'memory_mb'; it has image, runtime"),
    ],
)
def test_a_wrong_limit_is_named_with_its_rule(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_sandbox("local", **limits)


def test_specs_are_keys_and_travel() -> None:
    one, same = SandboxSpec(env={"A": "1"}), SandboxSpec(env={"A": "1"})
    assert {one: 1}[same] == 1
    assert SandboxSpec() not in {one}
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_spec_does_not_change_with_what_it_was_made_of() -> None:
    env = {"A": "1"}
    spec = SandboxSpec(env=env)
    env["A"] = "2"
    assert spec.env == {"A": "1"}


def test_a_folder_of_packages_with_gymnast_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheel" / "gymnast").mkdir(parents=True)
    (tmp_path / "editable" / "gymnast_rl-0.1.0.dist-info").mkdir(parents=True)
    (tmp_path / "former" / "gymnast-0.1.0.dist-info").mkdir(parents=True)
    made = [tmp_path / name for name in ("wheel", "editable", "former")]
    for folder in (*made, ROOT, ROOT / "sandboxes", "/"):
        with pytest.raises(UsageError, match="which holds Gymnast itself"):
            SandboxSpec(packages=str(folder))
    with pytest.raises(UsageError, match=r"which is no folder; make one with `pip install"):
        SandboxSpec(packages=str(tmp_path / "nothing"))


def test_a_folder_of_packages_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guests").mkdir()
    (tmp_path / "link").symlink_to("guests")
    monkeypatch.chdir(tmp_path)
    assert SandboxSpec(packages="link") == SandboxSpec(packages=str(tmp_path / "guests"))
