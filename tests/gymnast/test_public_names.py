"""The names that programs outside of the repository use are where they are promised to be."""

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import gymnast
from gymnast import errors

PROMISED = {
    "gymnast.types": "Message ToolCall Completion Sampling Trajectory StopReason",
    "gymnast.errors": "GymnastError",
    "gymnast.cores": "share_cores cores_left",
    "gymnast.envs": "Environment tool Renderer make register check_env Mixture compose rubrics",
    "gymnast.agents": "Agent PolicyAgent TransformersAgent ScriptedAgent ChatAgent load_model "
    "make_agent",
    "gymnast.sandboxes": "Sandbox SandboxSpec ExecResult DockerSandbox LocalSandbox open_sandbox",
    "gymnast.trainers": "rollout collect stream Trainer load_config advantages losses",
}


@pytest.mark.parametrize("module", PROMISED)
def test_promised_names_are_there(module: str) -> None:
    for name in PROMISED[module].split():
        assert hasattr(import_module(module), name), name


def test_the_face_offers_every_kind_of_agent() -> None:
    agents = {name for name in import_module("gymnast.agents").__all__ if name.endswith("Agent")}
    assert agents <= {*gymnast.__all__}


def test_the_face_offers_names_of_its_packages_when_asked() -> None:
    for name in gymnast.__all__:
        assert getattr(gymnast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Envirnment'"):
        gymnast.Envirnment  # noqa: B018


def test_importing_the_face_imports_no_torch() -> None:
    program = "import sys, gymnast; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_reading_the_rollouts_of_a_run_imports_no_torch() -> None:
    program = "import sys; from gymnast.trainers import load_rollouts"
    checked = f"{program}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", checked]).returncode == 0


def test_the_trainers_offer_all_names_when_asked() -> None:
    trainers = import_module("gymnast.trainers")
    for name in trainers.__all__:
        assert getattr(trainers, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        trainers.Trainr  # noqa: B018


def test_each_error_has_a_parent_of_the_standard_library() -> None:
    for name, found in inspect.getmembers(errors, inspect.isclass):
        if issubclass(found, Exception) and found is not errors.GymnastError:
            assert issubclass(found, errors.GymnastError), name
            standard = [base for base in found.__mro__ if base.__module__ == "builtins"]
            assert standard[0] is not Exception, name
            assert name in (errors.__doc__ or ""), f"{name} is missing in the drawing"
