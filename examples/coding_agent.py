"""A small coding agent: it shows the model a file, and writes files and runs a test as it is told.

A program of its own, which needs Python alone and knows nothing of Gymnast: any model server that
speaks chat completions will do. `repair.py` lets it play in a box.
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

TURNS = 4
TEST_TIMEOUT_S = 5
SYSTEM = "Repair the file: write it with write_file, then run_test. When it passes, say so."


def tool(name, description, **texts):
    """The schema of a tool whose parameters are texts."""
    properties = {each: {"type": "string", "description": text} for each, text in texts.items()}
    parameters = {"type": "object", "properties": properties, "required": list(texts)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("write_file", "Replace a file.", path="Its name.", text="All of its new text."),
    tool("run_test", "Run the test of the file."),
]


def run(name, arguments):
    """Run a call; return what the model is told."""
    if name == "write_file":
        Path(arguments["path"]).write_text(arguments["text"])
        return "written"
    if name != "run_test":
        return f"there is no tool {name}"
    command = [sys.executable, "-B", "test.py"]  # byte code could be that of the file before
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TEST_TIMEOUT_S)
    return (ended.stdout + ended.stderr).strip().rpartition("\n")[2][-200:]


def ask(messages):
    """The model's next message."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages, "tools": TOOLS}).encode(),
        {
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def main():
    """Work on the task until the model calls no tool, or has had its turns."""
    task = json.loads(Path(os.environ["GYMNAST_TASK"]).read_text())
    shown = f"{task['prompt']}\n\n{task['file']}:\n{Path(task['file']).read_text()}"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": shown}]
    for _ in range(TURNS):
        messages.append(ask(messages))
        calls = messages[-1].get("tool_calls") or []
        if not calls:
            break
        for call in calls:
            name = call["function"]["name"]
            try:
                result = run(name, json.loads(call["function"]["arguments"]))
            except Exception as error:  # which the model may put right
                result = f"{type(error).__name__}: {error}"[-200:]
            told = {"tool_call_id": call["id"], "name": name, "content": result}
            messages.append({"role": "tool", **told})


if __name__ == "__main__":
    main()
