"""What has gone wrong in this field before, each a test by its name, the whole way with real parts.

Real tokenizer, renderer, environments, rollouts and updates everywhere. Where a certain text must
be sampled, an agent says it as real token ids; elsewhere a real, tiny model samples.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate import Accelerator

from gymnast.agents import Agent, ScriptedAgent, TransformersAgent
from gymnast.agents.loading.tiny import CHAT_TEMPLATE, tiny_model, tiny_tokenizer
from gymnast.envs import Environment, Renderer, tool
from gymnast.trainers import Rollouts, Trainer, collect, load_config
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.algorithms.algorithm import make_algorithm
from gymnast.trainers.build import build_trainer
from gymnast.trainers.learner.credit import with_advantages
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.policy.micro_batches import micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Completion, Sampling, StopReason, Trajectory

Encode = Callable[[str], list[int]]
Write = Callable[..., str]
Script = Sequence[Sequence[int]]
END = "<|im_end|>"
ROW = {"prompt": "Go."}


class Desk(Environment):
    """Tools of every kind."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.log: list[str] = []

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two integers."""
        self.log.append(f"add {a} {b}")
        return a + b

    @tool
    async def multiply(self, a: int, b: int) -> int:
        """Multiply two integers."""
        await asyncio.sleep(0)
        self.log.append(f"multiply {a} {b}")
        return a * b

    @tool
    def repeat(self, times: int) -> str:
        """Say a word some times."""
        return "word " * times

    @tool(stop=True)
    def final_answer(self, times: int) -> str:
        """Answer."""
        return "answer " * times

    def reward(self, episode: Any) -> float:
        return float(len(episode.tool_calls) - 2 * len(episode.errors))


def logprob(token: int) -> float:
    """Another one for each id, and all near those of an untrained model."""
    return -6.9 - token / 10_000


class Saying:
    """Says turns of a script, by the row's first word, with a log-probability for each id."""

    def __init__(self, tokenizer: Any, scripts: dict[str, Script]) -> None:
        self.tokenizer = tokenizer
        self.agents = {name: ScriptedAgent(script) for name, script in scripts.items()}
        self.asked: list[str] = []

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        text = self.tokenizer.decode(context_ids)
        (name,) = [name for name in self.agents if f"<|im_start|>user\n{name}" in text]
        self.asked.append(name)
        said = await self.agents[name].generate(context_ids, sampling)
        return Completion(said.ids, [logprob(token) for token in said.ids], said.stop)


def gather(make_env: Callable[[], Any], agent: Agent, *rows: Any, **settings: Any) -> Rollouts:
    group_size = settings.pop("group_size", 1)
    sampling = settings.pop("sampling", None) or Sampling()
    rollouts = collect(
        make_env, agent, rows or [ROW], group_size=group_size, sampling=sampling, **settings
    )
    return asyncio.run(rollouts)


def play(env: Environment, *turns: list[int]) -> Trajectory:
    ((trajectory,),) = gather(lambda: env, ScriptedAgent(turns), concurrency=1)
    return trajectory


def tool_results(trajectory: Trajectory) -> list[str]:
    return [str(m["content"]) for m in trajectory.messages if m["role"] == "tool"]


def learn(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """One real optimisation step on a tiny model."""
    model = tiny_model()
    settings = UpdateSettings(
        # Wide clips, because the log-probabilities are made up.
        algorithm=make_algorithm("rloo", clip_low=0.9, clip_high=9.0),
        max_grad_norm=1.0,
        tokens_per_microbatch=2048,
    )
    optimizer = MasterOptimizer(model.parameters(), learning_rate=1e-3)
    return update(Policy(model), optimizer, groups, settings, Accelerator()).metrics


class Keeps:
    """An observer that keeps metrics and trajectories."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.groups: list[Any] = []

    def on_start(self, trainer_info: Any) -> None:
        pass

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        pass

    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        self.metrics.append(dict(metrics))
        self.groups.append(groups)

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None:
        self.metrics.append(dict(metrics))
        self.groups.append(groups)

    def on_end(self, summary: Any) -> None:
        pass

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for groups in self.groups for group in groups for t in group]


# --- Alignment


def test_mask_ids_and_logprobs_stay_aligned_for_a_degenerate_call_with_much_white_space(
    renderer: Renderer, tokenizer: Any, encode: Encode
) -> None:
    text = '{\n      "name"        :   "multiply"  ,\n\n   "arguments" :  {  "a":6 , "b" :   7 } }'
    # Sampled letter by letter: encoding the text again would give fewer ids.
    letters = [token for letter in text for token in encode(letter)]
    action = [*encode("<tool_call>\n"), *letters, *encode("\n</tool_call>" + END)]
    assert len(encode(tokenizer.decode(action))) < len(action)
    answer = encode("It is 42." + END)
    agent = Saying(tokenizer, {"Go": [action, answer]})
    ((trajectory,),) = gather(lambda: Desk(renderer), agent)
    assert tool_results(trajectory) == ["42"]
    (first, second), start = trajectory.turns, trajectory.prompt_length
    assert trajectory.ids[first.start : first.end] == action and first.start == start
    assert trajectory.ids[second.start : second.end] == answer and second.end == len(trajectory.ids)
    sampled = {i for turn in trajectory.turns for i in range(turn.start, turn.end)}
    for i, token in enumerate(trajectory.ids):
        assert trajectory.action_mask[i] == (i in sampled)
        assert trajectory.logprobs[i] == (logprob(token) if i in sampled else 0.0)
    samples = with_advantages([[trajectory]], ESTIMATORS["grpo"])[0]
    assert micro_batch(samples, torch.device("cpu")).targets.tolist() == action + answer


# --- The end of an episode


def test_a_stop_tool_ends_that_episode_right_after_its_result_and_no_other(
    renderer: Renderer, tokenizer: Any, encode: Encode, write_call: Write
) -> None:
    stop = encode(write_call("final_answer", times=2) + END)
    work = encode(write_call("add", a=1, b=2) + END)
    agent = Saying(tokenizer, {"Stop": [stop], "Work": [work, work, encode("Done." + END)]})
    rows = [{"prompt": "Stop."}, {"prompt": "Work."}]
    (stopped,), (other,) = gather(lambda: Desk(renderer), agent, *rows)
    assert agent.asked.count("Stop") == 1  # nothing sampled after it
    assert stopped.stop_reason is StopReason.stop_tool and stopped.terminated
    end = stopped.turns[-1].end
    assert tokenizer.decode(stopped.ids[end:]) == (
        "\n<|im_start|>user\n<tool_response>\nanswer answer \n</tool_response><|im_end|>\n"
    )
    assert not any(stopped.action_mask[end:]) and len(stopped.turns) == 1
    assert other.stop_reason is StopReason.answered
    assert len(other.turns) == 3 and tool_results(other) == ["3", "3"]


def test_after_a_stop_tool_with_a_long_result_the_budget_is_respected(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    stop = encode(write_call("final_answer", times=500) + END)
    for limits in ({"max_tokens": 100}, {"context_length": 700}):
        trajectory = play(Desk(renderer, **limits), stop)
        assert trajectory.stop_reason is StopReason.stop_tool and trajectory.terminated
        assert trajectory.ids[trajectory.prompt_length :] == stop  # its result is not appended
        assert tool_results(trajectory) == ["answer " * 500]


def test_templates_without_an_eos_at_the_end_of_a_turn_work(write_call: Write) -> None:
    """The assistant's turn ends in nothing: the next turn's first token ends it."""
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.chat_template = CHAT_TEMPLATE.replace("'<|im_end|>\\n'", "'\\n'")
    renderer = Renderer(tokenizer)
    assert "<|im_end|>" not in tokenizer.decode(renderer.prompt([{"role": "user", "content": "?"}]))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    call = write_call("add", a=1, b=2) + "\n<|im_start|>"
    trajectory = play(Desk(renderer), encode(call), encode("Three.\n<|im_start|>"))
    assert trajectory.stop_reason is StopReason.answered
    assert tokenizer.decode(trajectory.ids[trajectory.prompt_length :]) == (
        f"{call}user\n<tool_response>\n3\n</tool_response>\n<|im_start|>assistant\n"
        "Three.\n<|im_start|>"
    )


# --- Calls


def test_arguments_given_as_a_json_string_work(renderer: Renderer, encode: Encode) -> None:
    payload = json.dumps({"name": "multiply", "arguments": json.dumps({"a": 6, "b": "7"})})
    call = encode(f"<tool_call>\n{payload}\n</tool_call>{END}")
    trajectory = play(Desk(renderer), call, encode("42" + END))
    assert tool_results(trajectory) == ["42"]
    assert trajectory.metrics["tools/errors"] == 0.0


def test_several_calls_in_one_completion_all_run_in_order_sync_and_async(
    renderer: Renderer, tokenizer: Any, encode: Encode, write_call: Write
) -> None:
    calls = [("add", 1, 2), ("multiply", 3, 4), ("add", 5, 6), ("multiply", 7, 8)]
    written = "\n".join(write_call(name, a=a, b=b) for name, a, b in calls)
    env = Desk(renderer)
    trajectory = play(env, encode(written + END), encode("Done." + END))
    assert env.log == [f"{name} {a} {b}" for name, a, b in calls]
    assert tool_results(trajectory) == ["3", "12", "11", "56"]
    text = tokenizer.decode(trajectory.ids)
    places = [text.index(f"<tool_response>\n{result}\n") for result in ("3", "12", "11", "56")]
    assert places == sorted(places)
    assert trajectory.metrics["tools/calls"] == 4.0


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("malformed", '<tool_call>\n{"name": "add", "arguments": {"a": 1,\n</tool_call>'),
        ("unknown_tool", '<tool_call>\n{"name": "subtract", "arguments": {}}\n</tool_call>'),
        ("bad_arguments", '<tool_call>\n{"name": "add", "arguments": {"a": "x"}}\n</tool_call>'),
    ],
)
def test_malformed_calls_are_answered_counted_and_trained_on(
    kind: str, written: str, renderer: Renderer, tokenizer: Any, encode: Encode, write_call: Write
) -> None:
    answer = encode("Done." + END)
    wrong, right = encode(written + END), encode(write_call("add", a=1, b=2) + END)
    agent = Saying(tokenizer, {"Wrong": [wrong, answer], "Right": [right, answer]})
    rows = [{"prompt": "Wrong."}, {"prompt": "Right."}]
    rollouts = gather(lambda: Desk(renderer), agent, *rows)
    bad, good = rollouts.trajectories  # trained on as if of one row
    assert len(bad.turns) == 2 and bad.stop_reason is StopReason.answered  # it went on
    (told,) = tool_results(bad)
    assert "Error" in told
    assert rollouts.metrics["tools/errors"] == rollouts.metrics[f"tools/errors/{kind}"] == 1
    assert bad.reward < good.reward
    samples = with_advantages([[bad, good]], ESTIMATORS["grpo"])[0]
    batch = micro_batch(samples, torch.device("cpu"))
    targets, advantages = batch.targets.tolist(), batch.advantages.tolist()
    assert targets == [*wrong, *answer, *right, *answer]
    assert all(value < 0 for value in advantages[: len(wrong)])
    metrics = learn([[bad, good]])
    assert metrics["tokens/trained"] == len(targets)
    assert metrics["clipped"] == 0 < metrics["grad_norm"]  # so each of them has a gradient


# --- Counts and limits


def test_token_counts_that_normalise_the_loss_exclude_tool_tokens(
    renderer: Renderer, tokenizer: Any, encode: Encode, write_call: Write
) -> None:
    answer = encode("Done." + END)
    calls = {n: encode(write_call("repeat", times=n) + END) for n in (1, 90)}
    metrics, observed = {}, {}
    for times, call in calls.items():
        agent = Saying(tokenizer, {"Go": [call, answer], "No": [answer]})
        rollouts = gather(lambda: Desk(renderer), agent, ROW, {"prompt": "No."})
        group = rollouts.trajectories  # as if of one row: one called, one did not
        metrics[times] = learn([group])
        observed[times] = sum(len(t.ids) - t.prompt_length - t.action_tokens for t in group)
        assert metrics[times]["tokens/trained"] == len(call) + 2 * len(answer)
    assert observed[90] > observed[1] + 80


def write_parser(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A parser to which every completion is a call, so that a random model's episodes go on."""
    (folder / "own_parser.py").write_text(
        "def everything_calls(text):\n    return [{'name': 'repeat', 'arguments': {'times': 3}}]\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    return "own_parser:everything_calls"


def test_a_context_limit_truncates_by_model_length_not_only_by_completion_length(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completions are short; it is the context that grows until the model is full."""
    renderer = Renderer(tokenizer, parser=write_parser(tmp_path, monkeypatch))
    agent = TransformersAgent(tiny_model(max_position_embeddings=900))
    assert agent.context_length == 900
    rollouts = gather(
        lambda: Desk(renderer, max_turns=100, context_length=agent.context_length),
        agent,
        group_size=3,
        sampling=Sampling(max_new_tokens=8),
    )
    for trajectory in rollouts.trajectories:
        assert trajectory.stop_reason is StopReason.context and trajectory.truncated
        assert 3 < len(trajectory.turns) < 100
        assert 860 < len(trajectory.ids) <= 900
        assert all(turn.end - turn.start <= 8 for turn in trajectory.turns)


def test_a_prompt_that_does_not_fit_is_never_truncated_its_row_is_skipped_and_counted(
    tokenizer: Any,
) -> None:
    rows = [{"prompt": "word " * 3000}, {"prompt": "Go."}]
    observer = Keeps()
    Trainer(
        tiny_model(),
        tokenizer,
        Desk,
        rows,
        group_size=4,
        rows_per_step=2,
        steps=1,
        sampling=Sampling(max_new_tokens=4),
        observer=observer,
    ).train()
    (metrics,) = observer.metrics
    assert metrics["episodes/rows_skipped"] == 1
    assert metrics["episodes/left_out"] == 0
    assert [t.row["prompt"] for t in observer.trajectories] == ["Go."] * 4
    prompts = {tokenizer.decode(t.ids[: t.prompt_length]) for t in observer.trajectories}
    assert all("user\nGo.<|im_end|>" in prompt for prompt in prompts)


def test_the_context_length_reaches_a_trainers_own_environment(tokenizer: Any) -> None:
    observer = Keeps()
    rows = [{"prompt": "What is 2 + 3?", "answer": 5}]
    model = tiny_model(max_position_embeddings=500)
    Trainer(
        model,
        tokenizer,
        "gymnast/Arithmetic-v0",
        rows,
        group_size=4,
        rows_per_step=1,
        steps=1,
        sampling=Sampling(max_new_tokens=1000),
        observer=observer,
    ).train()
    lengths = [len(t.ids) for t in observer.trajectories]
    assert max(lengths) == 500
    assert {t.stop_reason for t in observer.trajectories} >= {StopReason.context}


# --- Rows


def test_the_tools_offered_may_differ_from_row_to_row(
    renderer: Renderer, tokenizer: Any, encode: Encode, write_call: Write
) -> None:
    script = [encode(write_call("add", a=1, b=2) + END), encode("Done." + END)]
    agent = Saying(tokenizer, {"First": script, "Second": script})
    rows = [
        {"prompt": "First.", "tools": ["add", "repeat"]},
        {"prompt": "Second.", "tools": ["multiply"]},
    ]
    # One environment for both: what one row offers must not stay for the next.
    (first,), (second,) = gather(lambda: Desk(renderer), agent, *rows, concurrency=1)
    for trajectory, offered in ((first, ["add", "repeat"]), (second, ["multiply"])):
        prompt = tokenizer.decode(trajectory.ids[: trajectory.prompt_length])
        named = [n for n in ("add", "multiply", "repeat") if f'"name": "{n}"' in prompt]
        assert named == offered
    assert tool_results(first) == ["3"]
    assert second.metrics["tools/errors/unknown_tool"] == 1.0
    assert "multiply" in tool_results(second)[0]


# --- The trainer and its config


PLAIN_FUNCTIONS = '''
from gymnast.envs import Environment


def repeat(times: int) -> str:
    """Say a word some times."""
    return "word " * times


def submit(answer: str) -> str:
    """Hand in the answer."""
    return "received"


Plain = Environment.from_tools([repeat, submit], reward=lambda e: len(e.answer) % 5)
'''


@pytest.fixture
def run_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a tiny model in an environment of plain functions, with a parser of its own."""
    (tmp_path / "plain_functions.py").write_text(PLAIN_FUNCTIONS)
    rows = [{"question": f"Go {i}."} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "model": {"name": "tiny:", "parser": write_parser(tmp_path, monkeypatch)},
        "environment": {"id": f"{tmp_path / 'plain_functions.py'}:Plain", "max_turns": 3},
        "data": {"train": str(tmp_path / "rows.jsonl"), "columns": {"prompt": "question"}},
        "algorithm": {"name": "grpo", "group_size": 4},
        "sampling": {"max_new_tokens": 8},
        "trainer": {"steps": 1, "rows_per_step": 2, "learning_rate": 1.0e-3},
        "deterministic": True,
        "output_dir": str(tmp_path / "run"),
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def train(run_yaml: Path, *overrides: str) -> tuple[Trainer, Keeps]:
    observer = Keeps()
    trainer = build_trainer(load_config(run_yaml, list(overrides)), observer=observer)
    trainer.train()
    return trainer, observer


def test_rloo_runs_the_same_tool_loop_as_grpo(run_yaml: Path) -> None:
    """Two lines of a config: the same episodes, other gradients."""
    seen: dict[str, Keeps] = {}
    for name in ("grpo", "rloo"):
        _, observer = train(
            run_yaml, f"algorithm.name={name}", f"output_dir={run_yaml.parent / name}"
        )
        seen[name] = observer
    grpo, rloo = seen["grpo"].trajectories, seen["rloo"].trajectories
    assert [t.ids for t in grpo] == [t.ids for t in rloo]
    assert all(len(t.turns) == 3 and len(tool_results(t)) == 3 for t in rloo)
    assert [t.action_mask for t in grpo] == [t.action_mask for t in rloo]
    norms = [seen[name].metrics[0]["grad_norm"] for name in ("grpo", "rloo")]
    assert min(norms) > 0 and norms[0] != pytest.approx(norms[1], rel=0.01)


def test_evaluation_batches_larger_than_training_batches_work(run_yaml: Path) -> None:
    trainer, _ = train(run_yaml, "trainer.rows_per_step=1", "algorithm.group_size=2")
    metrics = trainer.evaluate([{"prompt": f"Say {i}."} for i in range(30)])
    assert metrics["eval/episodes/finished"] == 30
    assert metrics["eval/tools/calls"] == 90


def test_stop_tools_and_a_parser_can_be_named_in_the_config_for_plain_functions(
    run_yaml: Path,
) -> None:
    _, free = train(run_yaml)
    assert {t.stop_reason for t in free.trajectories} == {StopReason.max_turns}
    _, stopping = train(
        run_yaml, "environment.stop_tools=[repeat]", f"output_dir={run_yaml.parent / 'stopping'}"
    )
    for trajectory in stopping.trajectories:
        assert trajectory.stop_reason is StopReason.stop_tool
        assert len(trajectory.turns) == 1 and tool_results(trajectory) == ["word word word "]


def test_a_context_length_below_the_models_own_reaches_the_environment(run_yaml: Path) -> None:
    _, observer = train(run_yaml, "environment.context_length=400", "environment.max_turns=50")
    for trajectory in observer.trajectories:
        assert trajectory.stop_reason is StopReason.context
        assert 350 < len(trajectory.ids) <= 400
