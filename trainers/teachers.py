"""What a teacher needs before a run: its model or servers, and an environment with hints."""

from typing import Any

from gymnast.agents.loading.load import load_model, load_tokenizer
from gymnast.agents.loading.vocabulary import check_has_logits, check_same_vocabulary
from gymnast.agents.vllm_teacher import VLLMTeacher
from gymnast.envs import Environment
from gymnast.envs.registry import find
from gymnast.errors import ConfigError, ModelError
from gymnast.trainers.algorithms.distillation import Teacher
from gymnast.trainers.rollouts.one_episode import no_hints


def check_teacher(
    teacher: Teacher | None, tokenizer: Any, environment: Any, *, temperature: float
) -> None:
    """Check, before any weights are loaded, that a teacher can teach.

    Args:
        teacher: How it teaches; None where there is none.
        tokenizer: The policy's.
        environment: What `Trainer` takes; a function that makes one shows only in its first
            episode whether it has hints.
        temperature: At which the actions are sampled.

    Raises:
        ModelError: Its model cannot be found, or has another vocabulary.
        ConfigError: It is to use hints, and the environment has none; or it is on servers, which
            cannot be used, or do not say what is asked of them at this temperature.
    """
    if teacher is None:
        return
    if teacher.is_served:
        _served(teacher, tokenizer, temperature).close()
    elif teacher.is_other and isinstance(teacher.model, str):
        try:
            own = load_tokenizer(teacher.model)
        except ModelError as error:
            raise ModelError(f"algorithm.teacher.model: {error}") from error
        check_same_vocabulary(tokenizer, own, teacher.model)
    _check_hints(teacher, environment)


def _check_hints(teacher: Teacher, environment: Any) -> None:
    if teacher.uses_hints and isinstance(environment, str | type):
        cls = find(environment)
        if issubclass(cls, Environment) and cls.hint is Environment.hint:
            raise no_hints(cls)


def _served(teacher: Teacher, tokenizer: Any, temperature: float) -> VLLMTeacher:
    """A teacher on servers, checked."""
    if temperature != 1:
        raise ConfigError(
            f"sampling.temperature: is {temperature:g}, and vLLM servers (algorithm.teacher.urls) "
            "give the log-probabilities of a teacher at a temperature of 1 alone; set it to 1, or "
            "load the teacher in this process (algorithm.teacher.model)"
        )
    return VLLMTeacher(
        teacher.urls or (),
        tokenizer,
        served_model=teacher.served_model,
        api_key_env=teacher.api_key_env,
        request_timeout_s=teacher.request_timeout_s,
        lost_after_s=teacher.lost_after_s,
    )


def teacher_model(
    teacher: Teacher | None, tokenizer: Any, environment: Any, temperature: float
) -> Any:
    """Check a teacher; its model, frozen, or its servers, where it is another one than the policy.

    Otherwise None.

    Args:
        teacher: How it teaches; None where there is none.
        tokenizer: The policy's.
        environment: What `Trainer` takes.
        temperature: At which the actions are sampled.

    Raises:
        ModelError: It cannot be loaded, or has too few logits; and what `check_teacher` raises.
        ConfigError: As `check_teacher` does.
    """
    if teacher is not None and teacher.is_served:
        _check_hints(teacher, environment)
        return _served(teacher, tokenizer, temperature)
    check_teacher(teacher, tokenizer, environment, temperature=temperature)
    if teacher is None or not teacher.is_other:
        return None
    model, name = teacher.model, teacher.model
    if isinstance(name, str):
        model, _ = load_model(name, dtype=teacher.dtype)
    else:
        name = type(model).__name__
    check_has_logits(model, tokenizer, name)
    return model.eval().requires_grad_(False)
