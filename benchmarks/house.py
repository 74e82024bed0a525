"""Counts that say how the house is built: modules, long files and functions, and how far one reads.

    python benchmarks/house.py [CHECKOUT] [--names]

Everything is read from the source by `ast`; nothing is imported, so any checkout can be counted.

    modules                 files of the packages, `__init__.py` left out
    folders over 12         folders that hold more than twelve of them
    files over 400, 300     lines
    functions over 40       lines, without the docstring
    one importer            modules that exactly one other module imports (`__init__.py` left out:
                            it re-exports)
    longest import chain    hops from a module down to one that imports nothing of the project
    files, stays, returns   of someone who reads `build_trainer` call by call

The walk follows the calls of a function in source order, each into the function that is called,
which is read to its end, calls included, before the next call; a function is read once. A stay is a
run of consecutive calls in one file, a return a stay in a file that was left before. Calls are
resolved where the text says what is called: a name, a class (its `__init__` and `__post_init__`), a
method of `self`, of a class, of a parameter annotated with one, or of what a class was called for.
"""

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

PACKAGES = ("gymnast", "sandboxes", "envs", "agents", "trainers")
START = "build_trainer"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file.

    Attributes:
        name: As it is imported, such as "gymnast.envs.tools.schema"; a package is its folder.
        path: Of the file.
        tree: Its source.
        imports: What each imported name stands for: "gymnast.errors.ConfigError" or a module.
    """

    name: str
    path: Path
    tree: ast.Module
    imports: dict[str, str]

    @property
    def is_package(self) -> bool:
        """Whether the file is an `__init__.py`."""
        return self.path.name == "__init__.py"

    @property
    def lines(self) -> int:
        """How many lines the file has."""
        return len(self.path.read_text().splitlines())

    @cached_property
    def definitions(self) -> dict[str, Function | ast.ClassDef]:
        """The functions and classes at its top."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return {node.name: node for node in self.tree.body if isinstance(node, kinds)}


@dataclass(frozen=True)
class House:
    """All modules of a checkout, by name."""

    modules: dict[str, Module]

    @property
    def files(self) -> list[Module]:
        """The modules that are no `__init__.py`."""
        return [module for module in self.modules.values() if not module.is_package]

    def find(self, dotted: str) -> tuple[Module, str] | None:
        """The module that defines a name, re-exports followed, and the name there.

        The name is "" if `dotted` is a module.
        """
        for _ in range(9):  # a re-export of a re-export; a circle ends here
            if dotted in self.modules:
                return self.modules[dotted], ""
            module = self.modules.get(dotted.rpartition(".")[0])
            name = dotted.rpartition(".")[2]
            if module is None:
                return None
            if name not in module.imports:
                return module, name
            dotted = module.imports[name]
        return None

    def imported(self, module: Module) -> set[str]:
        """The names of the modules that a module imports."""
        found = (self.find(dotted) for dotted in module.imports.values())
        return {other.name for other, _ in filter(None, found)} - {module.name}

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        """Which modules each module imports."""
        files = {module.name for module in self.files}
        return {module.name: self.imported(module) & files for module in self.files}


def read_house(checkout: Path) -> House:
    """Read all modules of a checkout."""
    modules = {}
    for package in PACKAGES:
        for path in sorted((checkout / package).rglob("*.py")):
            parts = path.relative_to(checkout).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            name = ".".join(parts if package == "gymnast" else ("gymnast", *parts))
            tree = ast.parse(path.read_text())
            modules[name] = Module(name, path, tree, _imports(tree, name))
    return House(modules)


def _imports(tree: ast.Module, module: str) -> dict[str, str]:
    """What imported names of the project stand for, wherever in the file they are imported."""
    imports = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gymnast"):
            for alias in node.names:
                imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("gymnast."):
                    imports[alias.asname or alias.name] = alias.name
    return {name: dotted for name, dotted in imports.items() if dotted != module}


# --- Counts


def crowded(house: House) -> list[str]:
    """The folders that hold more than twelve modules."""
    folders = sorted(str(module.path.parent) for module in house.files)
    return [folder for folder, group in groupby(folders) if len(list(group)) > 12]


def long_functions(house: House, most: int = 40) -> list[str]:
    """The functions with more lines than `most`, their docstrings left out."""
    found = []
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, Function) and _length(node) > most:
                found.append(f"{module.name}.{node.name} {_length(node)}")
    return found


def _length(function: Function) -> int:
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def with_one_importer(house: House) -> list[str]:
    """The modules that exactly one other module imports."""
    importers: dict[str, int] = dict.fromkeys(house.graph, 0)
    for imported in house.graph.values():
        for name in imported:
            importers[name] += 1
    return [name for name, number in importers.items() if number == 1]


def longest_chain(house: House) -> list[str]:
    """The modules from one that imports down to one that imports nothing, the most in a row.

    An import that closes a circle is not followed.
    """
    chains: dict[str, list[str]] = {}

    def chain(name: str, above: frozenset[str]) -> list[str]:
        if name not in chains:
            below = house.graph[name] - above - {name}
            longest = max((chain(n, above | {name}) for n in sorted(below)), key=len, default=[])
            chains[name] = [name, *longest]
        return chains[name]

    return max((chain(name, frozenset()) for name in sorted(house.graph)), key=len, default=[])


# --- The walk


@dataclass
class Walk:
    """Reads a function call by call.

    Attributes:
        house: Where the functions stand.
        visited: The file of each function that was read, in the order of reading.
    """

    house: House
    visited: list[str] = field(default_factory=list)
    _read: set[int] = field(default_factory=set)

    def read(self, module: Module, function: Function, owner: ast.ClassDef | None = None) -> None:
        """Read a function and everything that it calls, unless it was read before."""
        if id(function) in self._read:
            return
        self._read.add(id(function))
        self.visited.append(module.name)
        types = _annotated(function)
        for node in _in_source_order(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                types |= {t.id: node.value.func for t in node.targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.Call):
                for callee in self._callees(module, node.func, owner, types):
                    self.read(*callee)

    def _callees(
        self,
        module: Module,
        called: ast.expr,
        owner: ast.ClassDef | None,
        types: dict[str, ast.expr],
    ) -> Iterator[tuple[Module, Function, ast.ClassDef | None]]:
        """The functions that a call runs, as far as the text says."""
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            value = called.value.id
            if value in ("self", "cls") and owner is not None:
                yield from self._method(module, owner, called.attr)
                return
            known = types.get(value, called.value)
            defined = self._defined(module, known)
            if defined is not None and isinstance(defined[1], ast.ClassDef):
                yield from self._method(defined[0], defined[1], called.attr)
                return
        defined = self._defined(module, called)
        if defined is None:
            return
        place, node = defined
        if isinstance(node, ast.ClassDef):
            yield from self._method(place, node, "__init__")
            yield from self._method(place, node, "__post_init__")
        else:
            yield place, node, None

    def _defined(
        self, module: Module, named: ast.expr
    ) -> tuple[Module, Function | ast.ClassDef] | None:
        """The function or class that an expression names."""
        text = ast.unparse(named)
        first, _, rest = text.partition(".")
        if text in module.definitions:
            return module, module.definitions[text]
        if first not in module.imports:
            return None
        found = self.house.find(".".join(filter(None, (module.imports[first], rest))))
        if found is None or found[1] not in found[0].definitions:
            return None
        return found[0], found[0].definitions[found[1]]

    def _method(
        self, module: Module, owner: ast.ClassDef, name: str
    ) -> Iterator[tuple[Module, Function, ast.ClassDef | None]]:
        """A method of a class, or of the first of its bases that has it."""
        for node in owner.body:
            if isinstance(node, Function) and node.name == name:
                yield module, node, owner
                return
        for base in owner.bases:
            defined = self._defined(module, base)
            if defined is not None and isinstance(defined[1], ast.ClassDef):
                inherited = list(self._method(defined[0], defined[1], name))
                if inherited:
                    yield from inherited
                    return


def _annotated(function: Function) -> dict[str, ast.expr]:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {a.arg: a.annotation for a in arguments if a.annotation is not None}


def _in_source_order(function: Function) -> list[ast.expr | ast.stmt]:
    """The nodes of a function, a call after the calls that make its arguments."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    located = [node for node in nodes if isinstance(node, ast.expr | ast.stmt)]
    return sorted(located, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))


def stays(house: House, start: str = START) -> list[str]:
    """The files of a walk from a function, one entry a stay; empty if there is no such function."""
    walk = Walk(house)
    for module in house.files:
        function = module.definitions.get(start)
        if isinstance(function, Function):
            walk.read(module, function)
    return [name for name, _ in groupby(walk.visited)]


# --- The report


def counts(house: House) -> dict[str, list[str]]:
    """Everything that is counted, each with the names that are counted."""
    long_files = {most: [m.name for m in house.files if m.lines > most] for most in (400, 300)}
    walked = stays(house)
    return {
        "modules": [module.name for module in house.files],
        "folders over 12 modules": crowded(house),
        "files over 400 lines": long_files[400],
        "files over 300 lines": long_files[300],
        "functions over 40 lines": long_functions(house),
        "modules with one importer": with_one_importer(house),
        "hops of the longest import chain": longest_chain(house)[1:],
        f"files of a walk from {START}": sorted(set(walked)),
        "stays": walked,
        "returns": [name for place, name in enumerate(walked) if name in walked[:place]],
    }


def main() -> None:
    """Print the counts of a checkout."""
    parser = argparse.ArgumentParser(description="Count modules, long functions and reading hops.")
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--names", action="store_true", help="also print what is counted")
    options = parser.parse_args()
    for title, names in counts(read_house(options.checkout)).items():
        print(f"{len(names):5} {title}")
        for name in names if options.names and title != "modules" else ():
            print(f"        {name}")


if __name__ == "__main__":
    main()
