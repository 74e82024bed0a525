"""Which experts a vLLM server chose for each token, as `Completion.experts` has them.

A server that was started with `--enable-return-routed-experts` answers with a NumPy file in base64:
[tokens, all layers of the model, chosen], in which layers without experts are 0. The tokens are
those of the context, prefixes that it had cached among them, and those that were sampled but the
last.
"""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gymnast.agents.models.routing import Routers
from gymnast.agents.vllm.server import GENERATE, Server
from gymnast.errors import ConfigError, InfrastructureError, ModelError

RETURN_EXPERTS = "--enable-return-routed-experts"
CHECKED = [1, 2, 3]
CHECK_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ExpertLayers:
    """The layers with experts of a model that is trained, and where a server has them.

    Attributes:
        layers: The number of each among all layers, in the order of `Completion.experts`.
        experts: How many each of them has.
        chosen: How many each chooses.
        dtype: Of `Completion.experts`.
    """

    layers: tuple[int, ...]
    experts: tuple[int, ...]
    chosen: int
    dtype: str

    @classmethod
    def of(cls, model: Any) -> "ExpertLayers":
        """Those of a model, which stays in its mode.

        Raises:
            ModelError: It has no experts, or what was chosen could not be chosen again in training,
                or its layers are not numbered.
        """
        trains = model.training
        model.eval()
        try:
            routers = Routers(model)
        finally:
            model.train(trains)
        layers = tuple(map(_number, routers.blocks))
        return cls(layers, tuple(routers.experts), routers.shape[1], str(routers.kept.dtype))

    def read(self, encoded: Any, tokens: int) -> np.ndarray:
        """What a server says that was chosen, [tokens, layers with experts, chosen].

        Args:
            encoded: As it is in the answer.
            tokens: Of the context, and of those that were sampled but the last.

        Raises:
            InfrastructureError: It says nothing, or not this of a model with these layers.
        """
        told = decode(encoded, tokens)
        _, all_layers, chosen = told.shape
        if all_layers <= max(self.layers) or chosen != self.chosen:
            raise InfrastructureError(
                f"a vLLM server chooses {chosen} experts in each of {all_layers} layers, and the "
                f"model of the run {self.chosen}, up to layer {max(self.layers)}; serve the model "
                "that is trained"
            )
        found = told[:, self.layers, :]
        beyond = np.argwhere((found < 0) | (found >= np.array(self.experts)[:, None]))
        if len(beyond):
            token, layer, place = beyond[0]
            raise InfrastructureError(
                f"a vLLM server chooses expert {found[token, layer, place]} in layer "
                f"{self.layers[layer]}, which has {self.experts[layer]} in the model of the run; "
                "serve the model that is trained"
            )
        others = np.delete(told, self.layers, axis=1).any(axis=(0, 2))
        if others.any():
            raise InfrastructureError(
                f"a vLLM server chooses experts in {int(others.sum())} layers that have none in "
                "the model of the run; serve the model that is trained"
            )
        return found.astype(self.dtype)

    def check(self, encoded: Any, tokens: int) -> np.ndarray:
        """Read what a server says, and check that it numbers the layers as they are numbered here.

        Raises:
            InfrastructureError: As `read`; or a layer has no experts on the server.
        """
        found = np.sort(self.read(encoded, tokens), axis=-1)
        twice = (found[:, :, 1:] == found[:, :, :-1]).any(axis=(0, 2))
        if twice.any():
            layer = self.layers[int(twice.argmax())]
            raise InfrastructureError(
                f"a vLLM server chooses an expert of layer {layer} twice for a token: it has no "
                "experts there, or numbers its layers otherwise; set replay_routing to false"
            )
        return found


def decode(encoded: Any, tokens: int) -> np.ndarray:
    """The array in an answer, [tokens, all layers, chosen].

    Args:
        encoded: As it is in the answer.
        tokens: How many it is to have.

    Raises:
        InfrastructureError: There is none, or it is another.
    """
    if encoded is None:
        raise InfrastructureError(
            "a vLLM server does not say which experts it chose, which replay_routing needs; start "
            f"it with {RETURN_EXPERTS}, or set replay_routing to false"
        )
    try:
        content = io.BytesIO(base64.b64decode(encoded, validate=True))
        told = np.lib.format.read_array(content, allow_pickle=False)
        if not np.issubdtype(told.dtype, np.integer) or told.ndim != 3:
            raise ValueError(f"{told.dtype} of the shape {told.shape}")
    except Exception as error:  # a damaged header fails in NumPy as it happens to
        raise InfrastructureError(
            f"the experts in a vLLM server's answer cannot be read ({error!r}): {encoded!r:.60}"
        ) from error
    if len(told) != tokens:
        raise InfrastructureError(
            f"a vLLM server says which experts it chose for {len(told)} tokens, and it computed "
            f"{tokens}"
        )
    found: np.ndarray = told
    return found


async def check_experts(
    servers: Sequence[Server], model: str, read: Callable[[Any, int], object]
) -> None:
    """Check that servers say which experts they choose.

    Args:
        servers: That can be sampled from.
        model: The name that they serve.
        read: `decode`, or `ExpertLayers.check`.

    Raises:
        ConfigError: One does not.
    """
    parameters = {"max_tokens": 1, "detokenize": False, "ignore_eos": True}
    body = {"model": model, "token_ids": CHECKED, "sampling_params": parameters}
    for server in servers:
        try:
            answer = await server.ask("POST", GENERATE, body, timeout_s=CHECK_TIMEOUT_S)
            read(answer["choices"][0].get("routed_experts"), len(CHECKED))
        except InfrastructureError as error:
            raise ConfigError(f"urls: {server.url}: {error}") from error


def _number(block: str) -> int:
    """The number of a layer, by the name of a module in it, as vLLM finds it."""
    numbers = [int(part) for part in block.split(".") if part.isdecimal()]
    if len(numbers) != 1:
        raise ModelError(
            f"{block} has experts, and its name does not have the number of one layer, by which "
            "vLLM tells what was chosen in it; set replay_routing to false"
        )
    return numbers[0]
