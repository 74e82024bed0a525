"""What LoRA adapts in a mixture of experts: linear layers, stacked experts, and no routers.

Transformers holds the experts of a layer as stacked matrices, [experts, ...], which are parameters
of one module and no `nn.Linear`. Its classes are called `...Experts` in every family; what else has
parameters of three dimensions (convolutions, recurrent gates) is not.

peft takes some names of layers for experts as Transformers 4 had them, and would adapt the stacked
experts and the router in their place, in others' ranks. Layers with these names are named to it by
their weights, which it takes as they are.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

ALL_LINEAR = "all-linear"
# What Transformers calls the layer that chooses experts, or a part of its name.
ROUTER_NAMES = {"gate", "router", "classifier"}
# Layers of Mamba that are never called: its mixer multiplies by their weights itself.
READ_BY_MAMBA = {"dt_proj"}
TAKEN_FOR_EXPERTS = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}


@dataclass(frozen=True)
class LoraTargets:
    """What adapters are put on, as `peft.LoraConfig` takes it.

    Attributes:
        modules: What peft understands by itself, or the ends of names of layers.
        parameters: The ends of names of weights, and of stacked experts.
    """

    modules: str | list[str]
    parameters: list[str]


def lora_targets(model: Any, target: str | Sequence[str]) -> LoraTargets:
    """Find what a target means in a model.

    Args:
        model: Of Transformers, without adapters.
        target: "all-linear": all linear layers but the head, routers and those that are not
            called (`never_called`), and all stacked experts.
            A list: what its names are the ends of, layers, stacked experts, or the modules that
            hold these. Another text is peft's to understand.
    """
    stacks = list(stacked_experts(model))
    linear = linear_layers(model)
    unused = {name for name in linear if never_called(model, name)}
    own_list = bool(stacks) or (target == ALL_LINEAR and bool(unused))
    if not own_list or (isinstance(target, str) and target != ALL_LINEAR):
        return LoraTargets(target if isinstance(target, str) else list(target), [])
    others: list[str] = []
    if isinstance(target, str):
        routers = set(_linear_routers(model, stacks)) | unused
        layers = [name for name in linear if name not in routers]
    else:
        layers = [name for name in linear if any(_ends(name, t) for t in target)]
        stacks = [s for s in stacks if any(_ends(s, t) or _ends(_holder(s), t) for t in target)]
        named = [*layers, *stacks, *map(_holder, stacks)]
        others = [t for t in target if not any(_ends(name, t) for name in named)]
    taken = TAKEN_FOR_EXPERTS if stacks else set[str]()
    weights = [f"{name}.weight" for name in layers if _own(name) in taken]
    layers = [name for name in layers if _own(name) not in taken]
    modules = _short(layers, [name for name, _ in model.named_modules()], parts=1)
    parameters = [name for name, _ in model.named_parameters()]
    return LoraTargets(modules + others, _short([*stacks, *weights], parameters, parts=2))


def expert_blocks(model: Any) -> list[str]:
    """The names of the modules that hold stacked experts and, somewhere, what chooses among them.

    Args:
        model: Of Transformers, or of peft around one.
    """
    holders = (_holder(stack).partition(".base_layer")[0] for stack in stacked_experts(model))
    return list(dict.fromkeys(map(_holder, holders)))


def never_called(model: Any, name: str) -> bool:
    """Tell if the model reads a layer's weight and never calls the layer: adapters do nothing.

    Args:
        model: Of Transformers, with adapters on its layers or without.
        name: Of the layer.
    """
    holder = type(model.get_submodule(_holder(name))).__name__
    return _own(name) in READ_BY_MAMBA and "Mamba" in holder


def linear_layers(model: Any) -> list[str]:
    """The names of all linear layers but the head.

    Args:
        model: Of Transformers, without adapters.
    """
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]


def stacked_experts(model: Any) -> Iterator[str]:
    """The names of all parameters that are stacked experts."""
    for name, module in model.named_modules():
        if "Experts" in type(module).__name__:
            for own, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 3:
                    yield f"{name}.{own}"


def _linear_routers(model: Any, stacks: Sequence[str]) -> Iterator[str]:
    """The names of linear layers that choose experts, or are a part of what does."""
    for block in {_holder(_holder(stack)) for stack in stacks}:
        for name, module in model.get_submodule(block).named_modules(prefix=block):
            within = name.removeprefix(f"{block}.").split(".")
            if isinstance(module, nn.Linear) and ROUTER_NAMES & set(within):
                yield name


def _short(names: Collection[str], every: Sequence[str], parts: int) -> list[str]:
    """The names by their last parts, where nothing else ends so, as peft compares names.

    Args:
        names: Some of them.
        every: All names there are.
        parts: How many parts to keep.
    """
    ends: dict[str, set[str]] = defaultdict(set)
    for name in names:
        ends[".".join(name.split(".")[-parts:])].add(name)
    short: set[str] = set()
    for end, ending in ends.items():
        alone = all(name in ending for name in every if _ends(name, end))
        short |= {end} if alone else ending
    return sorted(short)


def _holder(name: str) -> str:
    return name.rpartition(".")[0]


def _own(name: str) -> str:
    return name.rpartition(".")[2]


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")
