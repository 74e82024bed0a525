"""What test_served_teachers.py runs in two real processes: both ask a vLLM server for a teacher.

    python served_teacher_processes.py FOLDER

The server is at SERVED_TEACHER_URL.
"""

import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from accelerate import Accelerator

from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.agents.vllm_teacher import VLLMTeacher
from gymnast.trainers import Teacher, make_algorithm
from gymnast.trainers.learner.credit import with_advantages
from gymnast.trainers.learner.teaching import Teaching, taught
from sampled_groups import random_groups
from two_processes import Found, run_scenarios


class Counts(VLLMTeacher):
    """Counts the texts that it reads."""

    read = 0

    def logprobs(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        self.read += len(texts)
        return super().logprobs(texts)


def served(folder: Path) -> Found:
    """The advantages of five episodes, and how many this process asked for."""
    url = os.environ["SERVED_TEACHER_URL"]
    teacher = Counts([url], tiny_tokenizer(), served_model="policy")
    groups = random_groups(tiny_model(seed=1), [[0.0, 1.0, 0.5], [1.0, 0.0]])
    credited = with_advantages(groups, make_algorithm("grpo").estimator)
    teaching = Teaching.of(Teacher(urls=[url]), tiny_model(), teacher, temperature=1.0)
    try:
        found, told = taught(credited, teaching, Accelerator(cpu=True), tokens_per_microbatch=64)
    finally:
        teacher.close()
    advantages = [episode.advantages.tolist() for episode in chain(*found)]
    return {"advantages": advantages, "told": told, "read": teacher.read}


if __name__ == "__main__":
    run_scenarios([served], Path(sys.argv[1]))
