"""A teacher on a real vLLM server teaches what the same model teaches in this process."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.agents.vllm_teacher import VLLMTeacher
from gymnast.envs import Environment
from gymnast.errors import ConfigError, NoServers
from gymnast.trainers import Teacher, Trainer, make_algorithm
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import load_config
from gymnast.trainers.learner.credit import with_advantages
from gymnast.trainers.learner.teaching import Teaching, taught
from gymnast.types import Sampling
from process_runs import in_two_processes
from sampled_groups import random_groups
from tcp_proxy import Proxy, proxied

TOKENIZER = tiny_tokenizer()

vllm = pytest.mark.vllm


@vllm
def test_what_a_server_teaches_is_what_its_model_teaches_here(vllm_float32_url: str) -> None:
    groups = random_groups(tiny_model(seed=1), [[0.0, 1.0, 0.5], [1.0, 0.0]])
    hint = list(range(300, 330))
    groups[0] = [
        replace(t, teacher_prompt_ids=[*hint, *t.ids[: t.prompt_length]]) for t in groups[0]
    ]
    credited = with_advantages(groups, make_algorithm("grpo").estimator)
    served = VLLMTeacher([vllm_float32_url], tiny_tokenizer(), served_model="policy")
    found = []
    try:
        for teacher, model in (
            (Teacher(tiny_model(), hints=True), tiny_model()),
            (Teacher(urls=[vllm_float32_url], hints=True), served),
        ):
            teaching = Teaching.of(teacher, tiny_model(seed=1), model, temperature=1.0)
            for _ in range(2):  # the second time the server has everything cached
                found.append(taught(credited, teaching, Accelerator(), tokens_per_microbatch=64))
    finally:
        served.close()
    (here, told_here), *others = found
    assert told_here["teacher/hinted"] == 0.6
    for there, told in others:
        for ours, theirs in zip(chain(*here), chain(*there), strict=True):
            torch.testing.assert_close(theirs.advantages, ours.advantages, atol=1e-4, rtol=0)
        assert told == pytest.approx(told_here, abs=1e-4)
    parts = [
        episode.advantages - before.token_advantages
        for episode, before in zip(chain(*here), chain(*credited), strict=True)
    ]
    assert torch.cat(parts).abs().mean() > 0.05  # many times the tolerance


@vllm
def test_a_yaml_names_servers_that_teach(vllm_float32_url: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        f"""\
model: {{name: "tiny:"}}
environment: {{id: gymnast/Arithmetic-v0, max_turns: 3}}
algorithm:
  name: distillation
  group_size: 1
  teacher: {{urls: ["{vllm_float32_url}"], served_model: policy}}
sampling: {{max_new_tokens: 6}}
trainer: {{steps: 2, rows_per_step: 2, learning_rate: 1.0e-3}}
evaluation: {{rows: 2}}
"""
    )
    config = load_config(tmp_path / "run.yaml", [f"output_dir={tmp_path / 'run'}"])
    build_trainer(config).train()
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    first, second = (line for line in lines if "teacher/kl" in line)
    assert first["teacher/episodes"] == 1.0
    # It has the weights that the run begins with, and keeps them.
    assert abs(first["teacher/kl"]) < 1e-4 < abs(second["teacher/kl"])


@vllm
@pytest.mark.parametrize(
    ("served_model", "change", "message"),
    [
        ("teacher", {}, r"algorithm.teacher.urls: http.* serves policy, and not 'teacher'"),
        ("policy", {"tokens": ["<think>"]}, "has logits for|another vocabulary"),
    ],
)
def test_servers_that_cannot_teach_are_refused(
    vllm_float32_url: str, served_model: str, change: dict[str, list[str]], message: str
) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(change.get("tokens", []))
    with pytest.raises(ConfigError, match=message):
        VLLMTeacher([vllm_float32_url], tokenizer, served_model=served_model)


@vllm
def test_an_episode_as_long_as_the_server_reads_is_read(vllm_float32_url: str) -> None:
    served = VLLMTeacher([vllm_float32_url], TOKENIZER, served_model="policy")
    try:
        (found,) = served.logprobs([[7] * served.longest])
        assert len(found) == served.longest - 1
        with pytest.raises(ConfigError, match=r"algorithm.teacher: .*longer than the maximum"):
            served.logprobs([[7] * (served.longest + 1)])
    finally:
        served.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "base", "urls": ["http://127.0.0.1:1"]}, "one of the two alone"),
        ({}, "one of the two alone"),
        ({"urls": ["http://127.0.0.1:1"], "estimator": "exact"}, "set it to sampled"),
        ({"urls": ["http://127.0.0.1:1"], "dtype": "float32"}, "have their own; leave it out"),
        ({"urls": ["http://127.0.0.1:1"], "lost_after_s": 0}, "lost_after_s: must be > 0"),
    ],
)
def test_settings_of_servers_that_do_not_go_together_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm.teacher.*{message}"):
        Teacher(**settings)


class Plain(Environment):
    """Neither a hint nor a reward."""


def begun(teacher: Teacher, temperature: float = 1.0, **settings: Any) -> Trainer:
    algorithm = make_algorithm("distillation", teacher=teacher)
    how = Sampling(max_new_tokens=6, temperature=temperature)
    rows = [{"prompt": "Go."}]
    settings = {"rows_per_step": 1, "group_size": 1, "observer": None} | settings
    return Trainer(
        *(tiny_model(), TOKENIZER, Plain, rows), algorithm=algorithm, sampling=how, **settings
    )


def test_a_teacher_at_another_temperature_than_servers_have_is_refused() -> None:
    message = r"sampling.temperature: is 0.7, and vLLM servers .* set it to 1"
    with pytest.raises(ConfigError, match=message):
        begun(Teacher(urls=["http://127.0.0.1:1"]), temperature=0.7)


@pytest.mark.parametrize(
    ("url", "message"),
    [("http://127.0.0.1:1", "is it running"), ("127.0.0.1:1", "must begin with http")],
)
def test_a_server_that_is_not_there_is_said_before_the_run(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm.teacher.urls: .*{message}"):
        begun(Teacher(urls=[url]))


@vllm
def test_a_server_that_is_lost_costs_no_episode(vllm_float32_url: str) -> None:
    texts = [list(range(start, start + 40)) for start in range(30)]
    with proxied(vllm_float32_url) as proxy:
        served = VLLMTeacher([proxy.url, vllm_float32_url], TOKENIZER, served_model="policy")
        try:
            before = served.logprobs(texts)
            proxy.refuses = True
            proxy.cut()
            after = served.logprobs(texts)
        finally:
            served.close()
    torch.testing.assert_close(torch.tensor(after), torch.tensor(before), atol=1e-4, rtol=0)


class Loses:
    """Loses the teacher's server after the first step."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self._proxy.refuses = step == 1
        self._proxy.cut()


@vllm
def test_a_run_whose_teacher_is_lost_ends_with_a_checkpoint(
    vllm_float32_url: str, tmp_path: Path
) -> None:
    with proxied(vllm_float32_url) as proxy:
        teacher = Teacher(urls=[proxy.url], served_model="policy", lost_after_s=1.0)
        settings: dict[str, Any] = {"steps": 2, "output_dir": tmp_path, "observer": Loses(proxy)}
        with pytest.raises(NoServers, match=r"algorithm.teacher: none of the vLLM servers answers"):
            begun(teacher, **settings).train()
        proxy.refuses = False
        summary = begun(teacher, **settings).train(resume=True)
    assert summary["steps"] == 2
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "teacher/kl" in line] == [1, 2]


@vllm
def test_each_of_two_processes_asks_for_its_share(
    vllm_float32_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVED_TEACHER_URL", vllm_float32_url)
    script = Path(__file__).parent / "served_teacher_processes.py"
    found = in_two_processes(script, tmp_path, longest_s=240)
    first, second = (each["served"] for each in found)
    assert (first.pop("read"), second.pop("read")) == (3, 2)
    assert first == second
