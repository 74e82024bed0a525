# examples/program.py
"""An agent program as an environment: it has the loop, and the policy is its model server.

`agent` is a program as people write them, with a client of OpenAI's and two functions as tools. It
knows nothing of Gymnast; a command in any language would do as well (`command=[...]`).
`Calculator` draws questions and says what an episode was worth.
"""

import json
import re

import openai

from gymnast.envs import Program

SYSTEM = "You are a calculator. Answer every question with a tool call, then give the answer."
FUNCTIONS = {"add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": NUMBERS, "required": ["a", "b"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": PARAMETERS}}
    for name, text in [("add", "Add two integers."), ("multiply", "Multiply two integers.")]
]


def solved(question, name, a, b):
    """A question with its call, its result and its answer, to show how it is done."""
    result = str(FUNCTIONS[name](a, b))
    call = {"name": name, "arguments": json.dumps({"a": a, "b": b})}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "tool_calls": [{"id": name, "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": name, "name": name, "content": result},
        {"role": "assistant", "content": f"The answer is {result}."},
    ]


SHOWN = [
    {"role": "system", "content": SYSTEM},
    *solved("What is 85 times 64?", "multiply", 85, 64),
    *solved("What is 28 plus 32?", "add", 28, 32),
]


def agent(base_url, api_key, task):
    """Answer a question; return the answer, and the calls that ran."""
    messages, ran = [*SHOWN, {"role": "user", "content": task["prompt"]}], []
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(4):
            asked = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = asked.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                name = call.function.name
                try:
                    arguments = json.loads(call.function.arguments)
                    result = FUNCTIONS[name](int(arguments["a"]), int(arguments["b"]))
                    ran.append((name, result))
                except (KeyError, TypeError, ValueError) as error:
                    result = f"{type(error).__name__}: {error}"
                result = {"tool_call_id": call.id, "name": name, "content": str(result)}
                messages.append({"role": "tool", **result})
    return message.content or "", ran


class Calculator(Program):
    """Answer a question about two integers."""

    function = staticmethod(agent)  # or on the class, or in a YAML: command = ["node", "agent.js"]

    def sample_row(self, rng):
        """A question such as "What is 17 times 23?"."""
        a, b = map(int, rng.integers(2, 100, size=2))
        name = ("add", "multiply")[int(rng.integers(2))]
        question = f"What is {a} {'plus' if name == 'add' else 'times'} {b}?"
        return {"prompt": question, "name": name, "answer": FUNCTIONS[name](a, b)}

    def reward(self, episode) -> float:
        """1.0 for the right answer, else 0.6 for the right call, else 0.2 for any that ran."""
        if self.result.exit_code != 0:  # it failed, or was ended by a limit
            return 0.0
        answer, ran = self.result.value
        numbers = re.findall(r"-?\d+", answer.replace(",", ""))
        if numbers and int(numbers[-1]) == self.row["answer"]:
            return 1.0
        return 0.6 if (self.row["name"], self.row["answer"]) in ran else 0.2 * bool(ran)
