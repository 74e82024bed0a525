"""vLLM's own engines for new weights, NCCL and CUDA IPC: from GPU to GPU, past any file.

The trainer's half is vLLM's, imported where it is used, so vLLM has to be installed beside the
trainer (`constraints-vllm.txt`). Each server has an engine of its own:

    nccl    the weights are broadcast to the server's workers, in packed buffers
    ipc     the server, on the same GPU, reads the trainer's memory, one packed buffer at a time

It follows the sources of vLLM 0.32 and has never run: nobody had the GPUs.
"""

import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import torch

from gymnast.agents.models.experts import expert_blocks
from gymnast.agents.models.merging import merged_weights
from gymnast.agents.vllm.weights.facts import Facts

NCCL, IPC = "nccl", "ipc"
SEND_TIMEOUT_S = 1800.0
INSTALL = "pip install -c constraints-vllm.txt 'gymnast-rl[vllm]' vllm"


def why_not_importable() -> str | None:
    """Why vLLM's half of the trainer cannot be had in this process; None if it can."""
    try:
        import vllm.distributed.weight_transfer  # noqa: F401
    except Exception as error:  # vLLM asks for much when it is imported
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"vllm cannot be imported beside the trainer ({reason}); {INSTALL}"
    return None


def why_not_engine(engine: str, model: Any, url: str, facts: Facts) -> str | None:
    """Why an engine cannot send a model's weights to a server; None if it can.

    Args:
        engine: "nccl" or "ipc".
        model: That is trained.
        url: Of the server.
        facts: How it was started.
    """
    if model.device.type != "cuda":
        return f"the trained model is on {model.device}, and must be on a CUDA device"
    if facts.transfer != engine:
        config = f'--weight-transfer-config \'{{"backend": "{engine}"}}\''
        return f"{url} takes {facts.transfer or 'files'} alone; start it with {config}"
    if engine == IPC and facts.workers > 1:
        return f"{url} has {facts.workers} workers, and ipc reaches one, on the trainer's GPU"
    if engine == IPC and torch.distributed.is_initialized():
        return "ipc is for one training process, and there are several"
    if engine == IPC and not facts.unpickles:
        return f"{url} needs VLLM_ALLOW_INSECURE_SERIALIZATION=1 in its environment for ipc"
    if expert_blocks(model):
        return "Transformers stacks the model's experts, and a server takes them one by one"
    return why_not_importable()


class Source:
    """A model's weights as vLLM's engines read them; a `WeightSource` by its shape.

    Args:
        model: Of Transformers, or of peft around one.
        describe: vLLM's `ParamMeta`.
    """

    def __init__(self, model: Any, describe: Callable[..., Any]) -> None:
        self._model, self._describe = model, describe
        self._described: list[Any] | None = None

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each weight, in the order in which they come."""
        if self._described is None:
            self._described = [
                self._describe(name, weight.dtype, tuple(weight.shape)) for name, weight in self
            ]
        return self._described

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight under its name in a model without adapters."""
        return merged_weights(self._model)


class Engines:
    """The trainer's ends of the engines, one for each server.

    Args:
        way: "nccl" or "ipc".
        model: That is trained.
    """

    def __init__(self, way: str, model: Any) -> None:
        self._way, self._model = way, model
        self._opened: dict[str, Any] = {}

    def send(self, url: str, facts: Facts) -> None:
        """Send the weights as they are now; blocks until the server has them.

        Raises:
            Exception: What vLLM's engine raised. The server's end has to be opened anew then.
        """
        torch.cuda.set_device(self._model.device)  # of this thread
        try:
            if url not in self._opened:
                self._opened[url] = self._open(url, facts)
            self._opened[url].send_weights()
        except BaseException:
            self.forget(url)
            raise

    def forget(self, url: str) -> None:
        """Open a server's end anew the next time: the server was lost."""
        if (engine := self._opened.pop(url, None)) is not None:
            engine.shutdown()

    def close(self) -> None:
        """Let go of all servers."""
        for url in list(self._opened):
            self.forget(url)

    def _open(self, url: str, facts: Facts) -> Any:
        from vllm.distributed.weight_transfer import (
            HTTPVLLMWeightSyncClient,
            ParamMeta,
            WeightTransferTrainerFactory,
        )

        client = HTTPVLLMWeightSyncClient(url, timeout=SEND_TIMEOUT_S)
        source = Source(self._model, ParamMeta)
        start = start_info(self._way, url, facts.workers)
        return WeightTransferTrainerFactory.trainer_init(start, client=client, source=source)


def start_info(way: str, url: str, workers: int) -> Any:
    """What an engine starts with: vLLM's `NCCLTrainerInitInfo` or `IPCTrainerInitInfo`.

    Args:
        way: "nccl" or "ipc".
        url: Of the server.
        workers: How many processes hold its model.
    """
    if way == IPC:
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0, packed=True)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    address, port = meeting_place(url)
    return NCCLTrainerInitInfo(
        master_address=address, master_port=port, world_size=1 + workers, rank=0
    )


def meeting_place(url: str) -> tuple[str, int]:
    """This machine's address as a server sees it, and a free port."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((parts.hostname, parts.port or 80))  # sends nothing
        address = str(asking.getsockname()[0])
    with socket.socket() as listening:
        listening.bind((address, 0))
        return address, int(listening.getsockname()[1])
