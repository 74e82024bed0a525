"""What a teacher needs before a run: its model, and an environment with hints."""

from typing import Any

from gymnast.agents.loading.load import load_model, load_tokenizer
from gymnast.agents.loading.vocabulary import check_has_logits, check_same_vocabulary
from gymnast.envs import Environment
from gymnast.envs.registry import find
from gymnast.errors import ModelError
from gymnast.trainers.algorithms.distillation import Teacher
from gymnast.trainers.rollouts.one_episode import no_hints


def check_teacher(teacher: Teacher | None, tokenizer: Any, environment: Any) -> None:
    """Check, before any weights are loaded, that a teacher can teach.

    Args:
        teacher: How it teaches; None where there is none.
        tokenizer: The policy's.
        environment: What `Trainer` takes; a function that makes one shows only in its first
            episode whether it has hints.

    Raises:
        ModelError: Its model cannot be found, or has another vocabulary.
        ConfigError: It is to use hints, and the environment has none.
    """
    if teacher is None:
        return
    if teacher.is_other and isinstance(teacher.model, str):
        try:
            own = load_tokenizer(teacher.model)
        except ModelError as error:
            raise ModelError(f"algorithm.teacher.model: {error}") from error
        check_same_vocabulary(tokenizer, own, teacher.model)
    if teacher.uses_hints and isinstance(environment, str | type):
        cls = find(environment)
        if issubclass(cls, Environment) and cls.hint is Environment.hint:
            raise no_hints(cls)


def teacher_model(teacher: Teacher | None, tokenizer: Any, environment: Any) -> Any:
    """Check a teacher; its model where that is another one than the policy, frozen, else None.

    Args:
        teacher: How it teaches; None where there is none.
        tokenizer: The policy's.
        environment: What `Trainer` takes.

    Raises:
        ModelError: It cannot be loaded, or has too few logits; and what `check_teacher` raises.
        ConfigError: As `check_teacher` does.
    """
    check_teacher(teacher, tokenizer, environment)
    if teacher is None or not teacher.is_other:
        return None
    model, name = teacher.model, teacher.model
    if isinstance(name, str):
        model, _ = load_model(name, dtype=teacher.dtype)
    else:
        name = type(model).__name__
    check_has_logits(model, tokenizer, name)
    return model.eval().requires_grad_(False)
