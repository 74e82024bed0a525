"""Triton's own interpreter for vLLM servers on a CPU, in place of a compiler that needs a GPU.

vLLM says which experts were chosen by its model runner V2 alone, whose small kernels are written
in Triton. The packages of Triton compile for GPUs. `TRITON_INTERPRET=1` has them computed by NumPy
instead; it is left to say that there is a backend for this machine, which vLLM asks for.
"""

from pathlib import Path

NAME = "triton_interpreter"
# Triton 3.9's interpreter counts loops in integers of Python, which kernels take for tensors.
PLUGIN = """
import builtins


class Number(int):
    def to(self, dtype):
        return int(self)


def register():
    from triton.runtime import interpreter

    interpreter.range = lambda *bounds: map(Number, builtins.range(*bounds))
"""
COMPILER = """
from triton.backends.compiler import BaseBackend


class Compiler(BaseBackend):
    supports_target = hash = parse_options = add_stages = load_dialects = get_module_map = None


Compiler.__abstractmethods__ = frozenset()
"""
DRIVER = """
from triton.backends.driver import DriverBase


class Driver(DriverBase):
    @classmethod
    def is_active(cls):
        return True


Driver.__abstractmethods__ = frozenset()
"""


def interpreted(folder: Path) -> dict[str, str]:
    """The environment of a vLLM server whose Triton kernels are interpreted.

    Args:
        folder: For what Triton imports.
    """
    package = folder / NAME
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PLUGIN)
    (package / "compiler.py").write_text(COMPILER)
    (package / "driver.py").write_text(DRIVER)
    facts = folder / f"{NAME}-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        f"[triton.backends]\ncpu = {NAME}\n[vllm.general_plugins]\n{NAME} = {NAME}:register\n"
    )
    return {"PYTHONPATH": str(folder), "TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
