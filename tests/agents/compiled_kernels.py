"""Triton kernels compiled without a GPU, and the resources that they take on one."""

import re
import subprocess
from pathlib import Path
from typing import Any

import torch

# Per thread. ptxas spills as much to get down to 64, 80, 128 or 168 registers, with which a
# program more has room; a tile that is too large spills hundreds or thousands of bytes.
SPILLED_BYTES = 32
CAPABILITIES = (80, 86, 89, 90, 100, 120)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def compiled(kernel: Any, capability: int, warps: int, stages: int, **arguments: Any) -> Any:
    """Compile as a launch does: `name=constant`, or `name="type"` for what a launch passes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        given = arguments[name]
        if isinstance(given, str):
            signature[name] = given.removesuffix(" by 16")
            if given.startswith("*") or given.endswith(" by 16"):
                attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[name], constants[name] = "constexpr", given
    return triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": stages},
    )


def report(made: Any, capability: int, folder: Path) -> str:
    """The resources that `ptxas -v` reports of a kernel's PTX."""
    import triton

    ptx = folder / "kernel.ptx"
    ptx.write_text(made.asm["ptx"])
    ptxas = "ptxas-blackwell" if capability >= 100 else "ptxas"
    name = f"sm_{capability}{'a' if capability >= 90 else ''}"
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    command: list[str | Path] = [
        tools / ptxas,
        "-v",
        f"--gpu-name={name}",
        ptx,
        "-o",
        folder / "kernel.cubin",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def check_resources(
    made: Any, capability: int, folder: Path, spilled_bytes: int = SPILLED_BYTES
) -> None:
    """Check that a kernel fits every card of this capability, without TF32."""
    assert made.asm["cubin"]
    assert made.metadata.shared <= 99 * 1024
    assert ".tf32" not in made.asm["ptx"]
    found = report(made, capability, folder)
    (spilled,) = re.findall(r"(\d+) bytes spill stores", found)
    (registers,) = re.findall(r"Used (\d+) registers", found)
    assert int(spilled) <= spilled_bytes
    assert int(registers) * 32 * made.metadata.num_warps <= 65536
