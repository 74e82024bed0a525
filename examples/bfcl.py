"""BFCL's conversations over several messages of a user, from the package that carries them.

    pip install --no-deps bfcl-eval mpmath
    gymnast check examples/bfcl.py:Conversations

The categories are base, miss_func, miss_param and long_context, 200 conversations each. A user asks
one thing after the other; what the calls did is graded by the package's own checker. In miss_func
tools come later, with a message of the user: an endpoint is simply sent them; a policy needs a chat
template that says tools with a message (docs/environments.md), and other templates refuse them.
"""

import ast
import copy
import importlib
import inspect
import json
import uuid
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gymnast.envs import CallRecord, Environment, Episode, Renderer, Turn, call
from gymnast.types import Message

Row = Mapping[str, Any]
Steps = list[list[str]]  # the calls of each turn after one message of the user

MULTI_TURN = "bfcl_eval.eval_checker.multi_turn_eval"
MAX_STEPS = 20  # turns with calls after one message of the user, as in the benchmark
NOW_COMPLETE = "I have updated some more functions you can choose from. What about now?"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "any": "string"}


def data() -> Path:
    """The folder of the package's data."""
    package = find_spec("bfcl_eval")
    if package is None or package.origin is None:
        raise SystemExit("bfcl_eval is missing: pip install --no-deps bfcl-eval mpmath")
    return Path(package.origin).parent / "data"


def conversations(category: str) -> list[Row]:
    """The rows of a category, each with the calls that solve it."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    asked, solved = (data() / name, data() / "possible_answer" / name)
    return [
        {**json.loads(question), "ground_truth": json.loads(answer)["ground_truth"]}
        for question, answer in zip(
            asked.read_text().splitlines(), solved.read_text().splitlines(), strict=True
        )
    ]


def json_schema(schema: Any) -> Any:
    """A schema in JSON's words, where the package has Python's and Java's."""
    if isinstance(schema, list):
        return [json_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: json_schema(value) for key, value in schema.items()}
    if isinstance(inner.get("type"), str):
        inner["type"] = TYPES.get(inner["type"], inner["type"])
    return inner


class Conversations(Environment):
    """Do what a user asks, one thing after the other, by the calls of simulated services."""

    def __init__(
        self, renderer: Renderer | None = None, *, category: str = "base", **settings: Any
    ) -> None:
        settings.setdefault("rows", conversations(category))
        settings.setdefault("max_turns", 200)
        super().__init__(renderer, **settings)

    def setup(self, row: Row) -> Any:
        """Start the services that the conversation is about."""
        config = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        self.services: list[Any] = []
        self.described: list[dict[str, Any]] = []
        for name in row["involved_classes"]:
            service = getattr(importlib.import_module(config.CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in config.STATELESS_CLASSES:
                long_context = "long_context" in row["id"]
                state = copy.deepcopy(row["initial_config"].get(name, {}))
                service._load_scenario(state, long_context=long_context)
            self.services.append(service)
            file = config.MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]
            text = (data() / "multi_turn_func_doc" / file).read_text()
            self.described += [json.loads(line) for line in text.splitlines()]
        self.asked = self.steps = 0
        return row["question"][0]

    def tools_for(self, row: Row) -> list[dict[str, Any]]:
        """Describe the functions of the services, but those that come later."""
        late = row.get("missed_function", {})
        missing = {name for turn, names in late.items() if int(turn) > self.asked for name in names}
        return [
            {
                "name": each["name"],
                "description": each["description"],
                "parameters": json_schema(each["parameters"]),
            }
            for each in self.described
            if each["name"] not in missing
        ]

    def service(self, name: str) -> Any:
        """The method of a service behind a tool."""
        return next(getattr(each, name) for each in self.services if hasattr(each, name))

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a function of a service, and write what it returns as the benchmark does."""
        result = self.service(name)(**arguments)
        try:
            return json.dumps(result) if isinstance(result, dict) else str(result)
        except TypeError:  # numbers of mpmath, say
            return str(result)

    def respond(self, message: Message) -> Any:
        """Ask the next thing."""
        self.asked, self.steps = self.asked + 1, 0
        if self.asked == len(self.row["question"]):
            return None
        if str(self.asked) not in self.row.get("missed_function", {}):
            return self.row["question"][self.asked]
        return [{"role": "user", "content": NOW_COMPLETE, "tools": self.tools_for(self.row)}]

    def turn_reward(self, turn: Turn) -> float:
        """Count the turns with calls, and end the episode where there are too many."""
        self.steps += bool(turn.calls)
        if self.steps > MAX_STEPS:
            self.end_episode()
        return 0.0

    def reward(self, episode: Episode) -> float:
        """Have the benchmark's checker grade what the calls did."""
        done: list[Steps] = []
        steps: Steps = []
        for turn in episode.turns:
            if turn.calls:
                steps.append([written(record) for record in turn.calls if ran(record)])
            else:
                done.append(steps)
                steps = []
        truth = self.row["ground_truth"]
        return float(len(done) == len(truth) and self.passes(done, truth))

    def passes(self, done: list[Steps], truth: Any) -> bool:
        """Whether the benchmark's checker, which keeps services by name, takes the calls."""
        checker = importlib.import_module(f"{MULTI_TURN}.multi_turn_checker")
        kept = vars(importlib.import_module(f"{MULTI_TURN}.multi_turn_utils"))
        name = f"m{uuid.uuid4().hex}"
        row = dict(self.row)
        try:
            graded = checker.multi_turn_checker(done, truth, row, row["id"], name)
            return bool(graded["valid"])
        finally:
            for each in list(kept):  # other episodes add theirs meanwhile
                if each.startswith(name):
                    del kept[each]

    def solve(self, row: Row) -> Iterator[Any]:
        """Say the calls that the benchmark holds to be right."""
        for calls in row["ground_truth"]:
            for text in calls:
                called = ast.parse(text, mode="eval").body
                names = inspect.signature(self.service(called.func.id)).parameters
                given = dict(zip(names, called.args, strict=False))
                given |= {keyword.arg: keyword.value for keyword in called.keywords}
                values = {key: ast.literal_eval(value) for key, value in given.items()}
                yield call(called.func.id, **values)
            yield "Done."


def ran(record: CallRecord) -> bool:
    """Whether a call came to a function; what else a policy writes may be code."""
    refused = ("malformed", "unknown_tool", "bad_arguments")
    return record.error is None or record.error.kind not in refused


def written(record: CallRecord) -> str:
    """A call as the benchmark writes it, whose checker evaluates it as Python."""
    given = ", ".join(f"{name}={value!r}" for name, value in record.arguments.items())
    return f"{record.call.name}({given})"
