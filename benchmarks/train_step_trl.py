"""TRL's side: one step of `GRPOTrainer`, driven through its public API.

`rollout_func` returns the batch in place of sampling, with the mask of the tools' tokens, and the
reward function returns its rewards. Measuring begins at the first loss, after sampling, rewards and
advantages, and ends after the optimizer's step. Old log-probabilities are those of the first pass,
as TRL does when it samples with the weights that it trains.
"""

import importlib
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback

from gymnast.agents import load_model
from train_step_batch import Group
from train_step_measure import Result, StepCost, first_gradients, measured, warm_up


def step(
    name: str,
    groups: list[Group],
    folder: Path,
    *,
    checkpointing: bool,
    clip: float,
    device: str,
    liger: bool,
) -> Result:
    """Take one step; see `train_step_gymnast.step`."""
    model, tokenizer = load_model(name, dtype="float32")
    warm_up(model.to(device))
    side = TRLSide(groups, device, liger)
    trainer = side.trainer(model, tokenizer, checkpointing, clip)
    trainer.train()
    states = trainer.optimizer.state
    moments = {name: states[weight]["exp_avg"] for name, weight in model.named_parameters()}
    beta = trainer.optimizer.param_groups[0]["betas"][0]
    gradients = first_gradients(moments, beta, folder, "trl")
    return Result(sum(side.losses), side.costs[0], side.sequences, gradients)


class TRLSide:
    """A `GRPOTrainer` that trains on a given batch, and the state that its hooks share.

    Attributes:
        losses: The loss of every micro-batch.
        sequences: The number of sequences in every micro-batch.
        costs: The cost of every optimisation step.
    """

    def __init__(self, groups: list[Group], device: str, liger: bool) -> None:
        self.groups, self.device, self.liger = groups, device, liger
        self.losses: list[float] = []
        self.sequences: list[int] = []
        self.costs: list[StepCost] = []
        self._measuring: ExitStack | None = None

    def trainer(
        self,
        model: Any,
        tokenizer: Any,
        checkpointing: bool,
        clip: float,
        *,
        learning_rate: float = 0.0,
        steps: int = 1,
        groups_per_microbatch: int = 1,
        ended: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Build the trainer.

        Args:
            model: A causal language model.
            tokenizer: The model's; it pads.
            checkpointing: True to compute layers again in the backward pass.
            clip: Longer gradients are scaled down to this norm.
            learning_rate: AdamW's.
            steps: Optimisation steps, each on the whole batch.
            groups_per_microbatch: Groups in one forward and backward pass.
            ended: Called after each step; True ends the training.
        """
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # of rollout_func
        trl = importlib.import_module("trl")
        side = self

        class Measured(trl.GRPOTrainer):  # type: ignore[name-defined,misc]
            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                side.begin()
                loss = super().compute_loss(model, inputs, *args, **kwargs)
                side.losses.append(loss.item())
                side.sequences.append(len(inputs["completion_ids"]))
                return loss

        class Ended(TrainerCallback):  # type: ignore[misc]
            def on_optimizer_step(self, _: Any, __: Any, control: Any, **___: Any) -> None:
                side.end()
                control.should_training_stop = ended()

        size = len(self.groups[0].episodes)
        arguments = trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=size * groups_per_microbatch,
            gradient_accumulation_steps=len(self.groups) // groups_per_microbatch,
            num_generations=size,
            max_completion_length=8192,  # never reached
            max_steps=steps,
            learning_rate=learning_rate,
            max_grad_norm=clip,
            gradient_checkpointing=checkpointing,
            bf16=False,
            shuffle_dataset=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=self.device == "cpu",
            use_liger_kernel=self.liger,
        )
        trainer = Measured(
            model=model,
            args=arguments,
            reward_funcs=_given_reward,
            train_dataset=Dataset.from_list(
                [{"prompt": str(number)} for number in range(len(self.groups))] * steps
            ),
            processing_class=tokenizer,
            rollout_func=self.roll_out,
            callbacks=[Ended()],
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def roll_out(self, prompts: list[str], _: Any) -> dict[str, list[Any]]:
        """Return the batch, in the order in which TRL asks for it."""
        members = {str(number): iter(group.episodes) for number, group in enumerate(self.groups)}
        episodes = [next(members[prompt]) for prompt in prompts]
        return {
            "prompt_ids": [self.groups[int(prompt)].prompt for prompt in prompts],
            "completion_ids": [episode.ids for episode in episodes],
            "logprobs": [[0.0] * len(episode.ids) for episode in episodes],
            "env_mask": [episode.mask for episode in episodes],
            "given": [episode.reward for episode in episodes],
        }

    def begin(self) -> None:
        """Begin measuring at the first loss; do nothing at the others."""
        if self._measuring is None:
            self._measuring = ExitStack()
            self.costs.append(self._measuring.enter_context(measured()))

    def end(self) -> None:
        """End measuring after the optimizer's step."""
        if self._measuring is not None:
            self._measuring.close()
            self._measuring = None


def _given_reward(given: list[float], **_: Any) -> list[float]:
    return given
