"""What a cache of Transformers consists of: its tensors and numbers, by the way that leads to them.

Caches are objects, lists or mappings of any shape; nothing here knows a model.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

# From a cache to one of its parts: names of attributes, and keys or indices of items.
Path = tuple[tuple[str, Any], ...]


def parts(cache: Any) -> Iterator[tuple[Path, Any]]:
    """The tensors, each once, and the whole numbers of a cache, with the paths to them."""
    seen: set[int] = set()

    def walk(path: Path, part: Any) -> Iterator[tuple[Path, Any]]:
        if isinstance(part, int) and not isinstance(part, bool):
            yield path, part
            return
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            yield path, part
        elif isinstance(part, Mapping):
            for key, inner in part.items():
                yield from walk((*path, ("item", key)), inner)
        elif isinstance(part, list | tuple):
            for index, inner in enumerate(part):
                yield from walk((*path, ("item", index)), inner)
        elif type(part).__module__.startswith("transformers.") and hasattr(part, "__dict__"):
            for key, inner in vars(part).items():
                yield from walk((*path, ("attribute", key)), inner)

    return walk((), cache)


def part_at(cache: Any, path: Path) -> Any:
    """The part of a cache to which a path leads."""
    for kind, key in path:
        cache = getattr(cache, key) if kind == "attribute" else cache[key]
    return cache


def put(cache: Any, path: Path, value: Any) -> None:
    """Set the part of a cache to which a path leads."""
    *way, (kind, key) = path
    holder = part_at(cache, tuple(way))
    if kind == "attribute":
        setattr(holder, key, value)
    elif isinstance(holder, tuple):
        put(cache, tuple(way), (*holder[:key], value, *holder[key + 1 :]))
    else:
        holder[key] = value


def tensors(cache: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a cache holds, each once, with the name of the attribute they are in."""
    for path, part in parts(cache):
        if isinstance(part, torch.Tensor):
            yield _name(path), part


def _name(path: Path) -> str:
    name = ""
    for kind, key in path:
        if kind == "attribute":
            name = key
        elif isinstance(key, str):
            name = f"{name}.{key}"
    return name


def nbytes(cache: Any) -> int:
    """How much memory a cache's tensors take, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors(cache))
