"""What the user can get wrong, and the one line that each mistake is answered with.

Every mistake is found before any weights are loaded. The table reads as documentation: what is
wrong, the command, the beginning of what is printed after `error: `. It names the thing, its value,
the rule and the way out.
"""

import json
import shlex
from pathlib import Path

import pytest

from command_fixtures import CommandLine

MANY = "".join(f'{{"prompt": "Buy {n} pears."}}\n' for n in range(29))
FILES = {
    "hole.jsonl": MANY + '{"q": "What?"}\n',
    "sell.jsonl": MANY + '{"prompt": "Sell.", "tools": ["sell"]}\n',
    "number.jsonl": '{"prompt": "Buy."}\n\n{"prompt": 15}\n',
    "image.json": json.dumps([{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}] * 2),
    "list.jsonl": '{"prompt": "Buy."}\n["Buy."]\n',
    "torn.jsonl": '{"prompt": "Buy."}\n{"prompt": "Bu\n',
    "short.csv": "prompt,answer\nBuy.,1\nBuy\n",
    "oops.jinja": "{% for m in messages %}\n{{ m.content }",
}
SHOP = "environment.id=shop.py:Shop environment.worked_turns=null"
ROWS = f"{SHOP} evaluation.rows=1 data.train="

# What is wrong: (the command after `gymnast`, what is said)
SETTINGS = {
    "a key with a typo": (
        "train run.yaml trainer.learning_rat=1",
        "trainer.learning_rat: unknown key; did you mean learning_rate?",
    ),
    "another framework's key": (
        "train run.yaml algorithm.num_generations=8",
        "algorithm.num_generations: unknown key; Gymnast calls it algorithm.group_size",
    ),
    "evaluation groups of nobody": (
        "train run.yaml evaluation.group_size=0",
        "evaluation.group_size: must be >= 1, got 0",
    ),
    "a reward to pass that is no number": (
        "train run.yaml evaluation.pass_reward=high",
        "evaluation.pass_reward: must be a number, got 'high'",
    ),
    "a filter on sampling": (
        "train run.yaml sampling.top_p=0.9",
        "sampling.top_p: must be 1.0 while training, got 0.9",
    ),
    "greedy sampling": (
        "train run.yaml sampling.temperature=0",
        "sampling.temperature: must be > 0 while training, got 0",
    ),
    "a tag that no row has": (
        "train run.yaml evaluation.by=[operatoin]",
        'evaluation.by.operatoin: must find something in a held-out row, got "operatoin" (the '
        "columns: a, answer, b, operation, prompt); did you mean operation?",
    ),
}
ENVIRONMENTS = {
    "an environment nobody registered": (
        "train run.yaml environment.id=gymnast/Arithmetik-v0",
        "there is no environment 'gymnast/Arithmetik-v0'. Did you mean 'gymnast/Arithmetic-v0'?",
    ),
    "a module that is not there": (
        "train run.yaml environment.id=nowhere:Shop",
        "there is no module 'nowhere' to import",
    ),
    "a setting the environment lacks": (
        "train run.yaml environment.max_turn=3",
        "environment: Arithmetic has no setting 'max_turn'. Did you mean 'max_turns'?",
    ),
    "a setting of another type": (
        "train run.yaml environment.max_operand=abc",
        "Arithmetic: max_operand must be a whole number, got 'abc'.",
    ),
    "a stop tool that is no tool": (
        "train run.yaml environment.stop_tools=[final]",
        "stop_tools names 'final'. There is no such tool. The tools are: add, multiply.",
    ),
    "a context longer than the model's": (
        "train run.yaml environment.context_length=4096",
        "environment.context_length: must be <= 2048, what the model tiny: was made for, got 4096",
    ),
    "a context too short for any prompt": (
        "train run.yaml environment.context_length=20",
        "gymnast/Arithmetic-v0: no prompt fits: the prompt has ",
    ),
    "more held-out rows than there can be": (
        "train run.yaml environment.max_operand=4 evaluation.rows=99",
        "evaluation.rows: must be < 18, got 99",
    ),
    "another environment that nobody registered": (
        "train run.yaml evaluation.environments.large.id=gymnast/Arithmetik-v0",
        "evaluation.environments.large: there is no environment 'gymnast/Arithmetik-v0'. Did you ",
    ),
}
MODELS = {
    "a parser without a module": (
        "train run.yaml model.parser=nope",
        "parser 'nope' must be 'module:function' or 'path/to/file.py:function'",
    ),
    "a template file that is not there": (
        "train run.yaml model.chat_template=nope.jinja",
        "model.chat_template: must be Jinja text or a file of it, got 'nope.jinja', which cannot "
        "be read: No such file or directory",
    ),
    "a chat template that is no Jinja": (
        "train run.yaml model.chat_template=oops.jinja",
        "model.chat_template 'oops.jinja': the chat template of ",
    ),
    "a model folder that is not there": (
        "train run.yaml model.name=./nope",
        "model '{here}/nope': there is no such folder",
    ),
}
DATA = {
    "a data file that is not there": (
        "train run.yaml data.train=row.jsonl",
        "row.jsonl: there is no such file (looked in {here}); did you mean rows.jsonl?",
    ),
    "no rows at all": (
        f"train run.yaml {SHOP}",
        "data.train: is required: Shop makes no rows of its own",
    ),
    "a dataset without a prompt": (
        f"train run.yaml {ROWS}rows.jsonl",
        "rows.jsonl, line 1: the row has no 'prompt' (its columns: q, price). Name the column",
    ),
    "a column that finds nothing": (
        f"train run.yaml {ROWS}rows.jsonl 'data.columns={{prompt: q.txt}}'",
        "rows.jsonl: data.columns.prompt: no row has anything at 'q.txt'; where 'txt' is looked "
        "for there are text; did you mean text?",
    ),
    "a column with a function that jmespath lacks": (
        f"train run.yaml {ROWS}rows.jsonl 'data.columns={{prompt: lenght(q.text)}}'",
        "rows.jsonl, line 1: data.columns.prompt: 'lenght(q.text)' cannot be read: Unknown functio",
    ),
    "a prompt missing far down in a dataset": (
        f"train run.yaml {ROWS}hole.jsonl",
        "hole.jsonl, line 30: the row has no 'prompt' (its columns: q).",
    ),
    "a prompt that is a number": (
        f"train run.yaml {ROWS}number.jsonl",
        "number.jsonl, line 3: the row's 'prompt' is 15; it must be a string or a list of messages",
    ),
    "a prompt with a picture": (
        f"train run.yaml {ROWS}image.json",
        "image.json, row 0: the row's 'prompt' is [{{'role': 'user', 'content': [{{'type': "
        "'image'}}]}}]; it must be a string or a list of messages of text alone (message 0 has a "
        "part of type 'image').",
    ),
    "a row that is a list": (
        f"train run.yaml {ROWS}list.jsonl",
        "list.jsonl, line 2: must be an object ({{...}}), got ['Buy.']",
    ),
    "a line that is torn": (
        f"train run.yaml {ROWS}torn.jsonl",
        "torn.jsonl, line 2, column 12: is not JSON: Unterminated string",
    ),
    "a line of CSV without its second value": (
        f"train run.yaml {ROWS}short.csv",
        "short.csv, line 3: has 1 values, and the header names 2 columns (prompt, answer)",
    ),
    "a tool unknown to the environment far down in a dataset": (
        f"train run.yaml {ROWS}sell.jsonl",
        "sell.jsonl, line 30: the row's 'tools' names 'sell'. There is no such tool. The tools are",
    ),
    "another environment's data file that is not there": (
        "train run.yaml 'evaluation.environments.large={id: gymnast/Arithmetic-v0, data: no.csv}'",
        "evaluation.environments.large.data: no.csv: there is no such file",
    ),
}
FOLDERS = {
    "a file for a folder": (
        "train run.yaml output_dir=run.yaml",
        "output_dir: run.yaml is a file; name a folder",
    ),
    "a folder that cannot be written": (
        "train run.yaml output_dir=rows.jsonl/out",
        "output_dir: rows.jsonl/out cannot be written: Not a directory",
    ),
}
WRONG = {**SETTINGS, **ENVIRONMENTS, **MODELS, **DATA, **FOLDERS}


@pytest.mark.parametrize(("command", "said"), WRONG.values(), ids=list(WRONG))
def test_a_mistake_is_one_line_before_any_weights_are_loaded(
    gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    def loads_weights(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("gymnast.trainers.run.load_model", loads_weights)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    ended = gymnast(*shlex.split(command))
    assert (ended.code, ended.errors.count("\n")) == (2, 1), ended.errors
    assert ended.errors.startswith("error: " + said.format(here=Path.cwd())), ended.errors
