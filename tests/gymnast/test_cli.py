"""The command line: what it prints, its exit codes, and one clear line for every mistake."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from command_fixtures import SHOP, CommandLine
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.trainers import load_rollouts

CALC = '''\
from gymnast.envs import Environment, tool

class Calc(Environment):
    @tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply two integers."""
        return self.calc.mul(a, b)

    def sample_row(self, rng):
        return {"prompt": "What is 3 times 4?"}

    def reward(self, episode):
        return 0.0
'''

# What it does


def test_a_quiet_run_says_nothing_of_a_device_for_deepspeed(
    gymnast: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    """DeepSpeed logs it to stdout where it is installed, as a model is saved."""
    assert gymnast("train", "run.yaml", "-q", "--dry-run", "model.name=./nope").code == 2
    deepspeed = logging.getLogger("DeepSpeed")
    deepspeed.warning("Setting accelerator to CPU. If you have GPU or other accelerator, ...")
    deepspeed.warning("something else")
    assert [record.message for record in caplog.records if record.name == "DeepSpeed"] == [
        "something else"
    ]


def test_a_run_is_trained_evaluated_and_not_overwritten(gymnast: CommandLine) -> None:
    trained = gymnast("train", "run.yaml", "trainer.steps=1", "trainer.max_grad_norm=2")
    assert trained.code == 0, trained.errors
    assert "evaluation after step 0: reward" in trained.output
    assert "step 1/1  reward" in trained.output
    assert trained.output.endswith(
        "the run is in out, the trained model in out/model\n"
        "why episodes earned nothing: gymnast rollouts out --why\n"
        "to train further: gymnast train run.yaml trainer.max_grad_norm=2 trainer.steps=2 "
        "--resume\n"
    )
    lines = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 1]
    assert "eval/reward/mean" in lines[0]
    AutoModelForCausalLM.from_pretrained("out/model")

    evaluated = gymnast("eval", "out", "evaluation.rows=2")
    assert evaluated.code == 0, evaluated.errors
    assert evaluated.output.endswith("\nmetrics and episodes are in out/evaluations/001\n")
    (kept,) = Path("out/evaluations/001/metrics.jsonl").read_text().splitlines()
    assert json.loads(kept)["eval/episodes/finished"] == 2
    assert len(load_rollouts("out/evaluations/001", step=0, evaluations=True)) == 2
    assert len(Path("out/metrics.jsonl").read_text().splitlines()) == 3, "which is of the training"
    again = gymnast("eval", "out/evaluations/001/config.yaml", "output_dir=elsewhere")
    assert again.output.endswith(" elsewhere/evaluations/001\n")
    assert gymnast("eval", "out", "-q").output.endswith(" out/evaluations/002\n")

    again = gymnast("train", "run.yaml")
    assert (again.code, again.errors) == (
        2,
        "error: output_dir: out already holds a run; continue it with --resume, remove it, or "
        "name another folder (output_dir=...)\n",
    )

    resumed = gymnast("train", "run.yaml", "--resume", "trainer.steps=2")
    assert resumed.code == 0, resumed.errors
    assert "step 2/2" in resumed.output and "step 1/2" not in resumed.output


def test_a_small_penalty_does_not_hide_why_nothing_was_earned(gymnast: CommandLine) -> None:
    Path("calc.py").write_text(CALC.replace("return 0.0", "return -0.025"))
    Path("rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    data = ("data={train: rows.jsonl}", "environment={id: calc.py:Calc, context_length: 700}")
    trained = gymnast("train", "run.yaml", "trainer.steps=1", "evaluation={rows: 1}", *data)
    assert trained.code == 0, trained.errors
    assert "why episodes earned nothing: gymnast rollouts out --why\n" in trained.output


def test_an_untrained_model_can_be_evaluated(gymnast: CommandLine) -> None:
    evaluated = gymnast("eval", "run.yaml")
    assert evaluated.code == 0, evaluated.errors
    assert [path.name for path in Path("out").iterdir()] == ["evaluations"]
    trained = gymnast("train", "run.yaml", "trainer.steps=1", "evaluation.rows=0")
    assert trained.code == 0, "an evaluation is in no run's way"


def test_an_evaluation_that_fails_leaves_nothing(gymnast: CommandLine) -> None:
    assert gymnast("eval", "run.yaml", "model.name=./nope").code == 2
    assert not Path("out").exists()
    assert gymnast("eval", "run.yaml").code == 0
    assert gymnast("eval", "run.yaml", "model.name=./nope").code == 2
    assert [path.name for path in Path("out/evaluations").iterdir()] == ["001"]


def test_an_evaluation_that_cannot_be_kept_is_told_before_it_begins(gymnast: CommandLine) -> None:
    Path("out").touch()
    assert gymnast("eval", "run.yaml").errors == (
        "error: output_dir: out/evaluations cannot be written: Not a directory; name another "
        "folder (output_dir=...)\n"
    )


def test_a_run_prints_less_and_more(gymnast: CommandLine) -> None:
    quiet = gymnast("train", "run.yaml", "-q", "trainer.steps=1", "output_dir=a")
    assert quiet.output == "the run is in a, the trained model in a/model\n"
    usual = gymnast("train", "run.yaml", "trainer.steps=1", "output_dir=b").output
    loud = gymnast("train", "run.yaml", "-v", "trainer.steps=1", "output_dir=c").output
    assert "eval/reward/mean " not in usual and "eval/reward/mean " in loud
    assert len(re.findall(r"reward 0\.00  \w+  What is", loud)) > len(
        re.findall(r"reward 0\.00  \w+  What is", usual)
    )


def test_the_package_is_a_program_and_help_has_a_short_name(shop_folder: Path) -> None:
    done = [
        subprocess.run([*command, flag], capture_output=True, text=True, check=True).stdout
        for command, flag in (
            ([sys.executable, "-m", "gymnast"], "-h"),
            ([sys.executable, "-m", "gymnast", "train"], "-h"),
            ([sys.executable, "-m", "gymnast"], "--version"),
        )
    ]
    assert "Train language models to use tools." in done[0]
    assert "--resume" in done[1] and "--verbose" in done[1]
    assert done[2].startswith("gymnast ")


def test_an_evaluation_ends_with_its_table_and_says_every_number_where_wanted(
    gymnast: CommandLine,
) -> None:
    usual = gymnast("eval", "run.yaml", "sampling.temperature=0").output
    assert len(usual.splitlines()) < 10 and "eval/" not in usual
    evaluated = gymnast(
        "eval",
        "run.yaml",
        "-v",
        "sampling.temperature=0",
        "evaluation.group_size=2",
        "evaluation.by=[operation]",
        "evaluation.environments.large={id: gymnast/Arithmetic-v0, max_turns: 2, min_operand: 100, "
        "max_operand: 999}",
    )
    assert evaluated.code == 0, evaluated.errors
    *before, last = evaluated.output.splitlines()
    assert last == "metrics and episodes are in out/evaluations/002"
    start = next(i for i, line in enumerate(before) if line.startswith("95% intervals"))
    table = before[start:]
    assert re.match(r"evaluation: 6 episodes  std \d\.\d{3}  \d+:\d\d$", before[start - 1])
    assert table[0].split() == ["95%", "intervals", "rows", "reward", "pass@1", "pass@2"]
    assert re.match(r"all rows +3  \d\.\d{3} \[", table[1])
    names = {line.split("  ")[0] for line in table}
    assert {"operation=add", "large", "large operation=add"} <= names
    numbers = [line.split() for line in before[:start] if line.startswith("eval/")]
    assert all(len(number) == 2 for number in numbers)
    assert {"eval/pass@2/low", "eval/large/by/operation=add/rows"} <= {n for n, _ in numbers}
    assert ["eval/rows", "3"] in numbers


def test_environments_are_listed_with_what_they_are(gymnast: CommandLine) -> None:
    listed = gymnast("envs").output
    assert re.search(
        r"\ngymnasium:ID +Play a game of Gymnasium's, .*\n +gymnasium [\d.]+ is installed\n", listed
    )
    assert re.match(
        r"gymnast/Arithmetic-v0 +Answer a question about two integers.*\n"
        r" +gymnast \d[\w.]+: /.*/builtin/arithmetic.py\n",
        listed,
    )


def test_an_environment_is_checked_and_shown(gymnast: CommandLine) -> None:
    checked = gymnast("check", "gymnast/Arithmetic-v0")
    assert checked.code == 0, checked.errors
    for line in (
        "Answer a question about two integers, with a calculator at hand.",
        "    0.6   the right call: the right tool with both operands, in either order",
        "  | <|im_start|>system",
        "  multiply(a=1, b=1) -> 1",
        "ok: gymnast/Arithmetic-v0",
    ):
        assert line in checked.output.splitlines()
    assert "Args:" not in checked.output
    Path("asked.jsonl").write_text('{"prompt": "Buy a pear.", "price": 1.0}\n')
    checked = gymnast("check", "shop.py:Shop", "max_turns=2", "--data", "asked.jsonl")
    assert checked.code == 0 and '  buy(what="text") -> one text\n' in checked.output
    assert checked.output.endswith("ok: shop.py:Shop\n")


def test_an_environment_that_breaks_the_contract_fails_the_check(gymnast: CommandLine) -> None:
    Path("random_shop.py").write_text(
        SHOP.replace("class Shop", "import random\nclass Shop")
        + "    \nShop.setup = lambda self, row: "
        "[{'role': 'user', 'content': str(random.random())}]\n"
        "Shop.sample_row = lambda self, rng: {'price': 1.0}\n"
    )
    checked = gymnast("check", "random_shop.py:Shop")
    assert checked.code == 1
    assert checked.errors.startswith(
        "failed: random_shop.py:Shop: two resets with the same seed differ: messages[0]['content']"
    )


def test_a_bug_of_a_tool_is_found_by_the_check_with_its_traceback(gymnast: CommandLine) -> None:
    Path("calc.py").write_text(CALC)
    checked = gymnast("check", "calc.py:Calc")
    assert (checked.code, checked.output) == (1, "")
    assert checked.errors.startswith(
        "failed: calc.py:Calc: multiply(a=1, b=1) failed because of a bug in the tool: Traceback"
    )
    assert "return self.calc.mul(a, b)" in checked.errors
    assert checked.errors.endswith("AttributeError: 'Calc' object has no attribute 'calc'\n")


def test_a_check_that_fails_names_a_method_that_may_be_a_hook(gymnast: CommandLine) -> None:
    Path("calc.py").write_text(CALC.replace("reward", "rewards"))
    checked = gymnast("check", "calc.py:Calc")
    assert checked.code == 1
    assert checked.errors.endswith(
        "\nodd: Calc.rewards is no hook of Environment, and the class does not call it; did you "
        "mean reward?\n"
    )


def test_help_and_version_do_without_torch(shop_folder: Path) -> None:
    code = (
        "import sys\nfrom gymnast.cli import main\nsys.argv = ['gymnast', sys.argv[1]]\n"
        "try:\n    main()\nfinally:\n"
        "    assert not {'torch', 'transformers', 'gymnasium'} & set(sys.modules)\n"
    )
    for flag, word in (("--help", "train"), ("--version", "gymnast 0")):
        done = subprocess.run(
            [sys.executable, "-c", code, flag], capture_output=True, text=True, check=True
        )
        assert word in done.stdout


# What the user can get wrong beside `test_wrong_inputs.py`

OWN = ("environment.id=shop.py:Shop", "environment.worked_turns=null", "data.train=rows.jsonl")


def test_a_model_without_a_chat_template(gymnast: CommandLine) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained("bare")
    tiny_model().config.save_pretrained("bare")
    ended = gymnast("train", "run.yaml", "model.name=./bare")
    assert ended.code == 2
    assert f"model '{Path.cwd()}/bare': its tokenizer has no chat template" in ended.errors


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("what: str", "what", "error: Shop: tool 'buy': parameter 'what' has no type hint"),
        ('"""Buy something."""', "pass", "error: Shop: tool 'buy'"),
    ],
)
def test_a_tool_that_cannot_be_described(
    gymnast: CommandLine, old: str, new: str, said: str
) -> None:
    Path("odd.py").write_text(SHOP.replace(old, new))
    ended = gymnast("train", "run.yaml", "environment.id=odd.py:Shop")
    assert (ended.code, ended.errors.count("\n")) == (2, 1), ended.errors
    assert ended.errors.startswith(said)
    assert ended.errors.endswith(f" It stands in odd.py, line {_line_of_tool('odd.py')}.\n")


def _line_of_tool(file: str) -> int:
    return Path(file).read_text().splitlines().index("    @tool") + 1


def test_a_reward_with_a_typo_shows_the_users_traceback_and_row(gymnast: CommandLine) -> None:
    Path("typo.py").write_text(SHOP.replace('row["price"]', 'row["prize"]'))
    changes = ("data.columns={prompt: q.text, price: price}", "evaluation.rows=1")
    ended = gymnast("train", "run.yaml", *OWN, "environment.id=typo.py:Shop", *changes)
    assert ended.code == 1
    lines = ended.errors.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.strip() for line in lines if "File " in line] == [
        f'File "{Path("typo.py").resolve()}", line {number}, in {name}'
        for number, name in ((15, "reward"), (18, "price"))
    ]
    assert lines[-1].startswith("error: Shop.reward: KeyError: 'prize' (row: {'q': {'text': ")


def test_a_constructor_that_raises_shows_the_users_traceback_and_settings(
    gymnast: CommandLine,
) -> None:
    own = "    def __init__(self, *given, prices, **settings):\n        open(prices)\n\n    @tool"
    Path("odd.py").write_text(SHOP.replace("    @tool", own))
    ended = gymnast("train", "run.yaml", *OWN, "environment.id=odd.py:Shop", "evaluation.rows=1")
    assert (ended.code, ended.errors.count("\n")) == (1, 1), ended.errors
    assert ended.errors.startswith("error: Shop.__init__: TypeError: Shop.__init__() missing 1")
    ended = gymnast("check", "odd.py:Shop", "prices=nope.csv")
    assert (ended.code, ended.errors.count("File ")) == (1, 1), ended.errors
    assert "(its settings: {'prices': 'nope.csv'})" in ended.errors


def test_a_module_with_a_syntax_error_shows_its_line_alone(gymnast: CommandLine) -> None:
    Path("odd.py").write_text(SHOP.replace("def reward(self, episode)", "def reward(self, episode"))
    ended = gymnast("check", "odd.py:Shop")
    assert ended.code == 1
    assert ended.errors.splitlines()[0].strip().startswith(f'File "{Path("odd.py").resolve()}"')
    assert "frozen importlib" not in ended.errors
    assert "SyntaxError" in ended.errors.splitlines()[-1]


def test_an_environment_without_rows_is_told_where_they_go(gymnast: CommandLine) -> None:
    ended = gymnast("check", "shop.py:Shop")
    assert (ended.code, ended.errors.count("\n")) == (2, 1)
    assert ended.errors.endswith("name some with --data rows.jsonl\n")


@pytest.mark.parametrize("place", ["load_model", "Trainer"])
def test_an_interrupted_run_ends_with_one_line(
    gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"gymnast.trainers.build.{place}", interrupted)
    ended = gymnast("train", "run.yaml")
    assert (ended.code, ended.errors) == (130, "interrupted\n")


def test_commands_and_options_that_do_not_exist(gymnast: CommandLine) -> None:
    assert "Did you mean 'train'?" in gymnast("trian").errors
    assert "Missing argument 'RUN.yaml'" in gymnast("train").errors


def test_a_package_that_is_broken_does_not_break_the_lists(
    gymnast: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "torn-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torn\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[gymnast.environments]\ntorn/Shop-v0 = torn_shop:Shop\n"
        "torn/Exits-v0 = torn_exits:Shop\ntorn/Malformed-v0 = no module\n"
        "gymnast/Python-v0 = torn_exits:Shop\n"
        "[gymnast.sandboxes]\ntorn = torn_boxes:Box\n"
    )
    (info.parent / "torn_exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(info.parent))
    for command, built_in in (("envs", "gymnast/Arithmetic-v0"), ("sandboxes", "local")):
        listed = gymnast(command)
        assert listed.code == 0 and built_in in listed.output
        torn = [line for line in listed.output.splitlines() if line.startswith("torn")]
        assert len(torn) == (3 if command == "envs" else 1)
        for line in torn:
            assert "does not work: " in line and "package 'torn' (entry point 'torn" in line
    listed = gymnast("envs")
    assert re.search(r"\ntorn/Exits-v0 .* SystemExit: 3\. Update .*\n +torn 1\.0\n", listed.output)
    assert "  torn 1.0 registers this id too, in vain\n" in listed.output
    assert gymnast("train", "run.yaml", "trainer.steps=1", "evaluation.rows=0").code == 0
    ended = gymnast("check", "torn/Exits-v0")
    assert (ended.code, ended.errors.count("\n")) == (2, 1)
    assert "cannot be loaded: SystemExit: 3. Update the package, or uninstall it." in ended.errors
