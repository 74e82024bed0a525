"""Training with DeepSpeed (ZeRO): optimizer, gradients and weights divided over processes.

    stage 1   float32 master weights and AdamW's moments in shares
    stage 2   gradients too
    stage 3   the model's weights too, gathered layer by layer in every pass

DeepSpeed keeps the master weights, sums and clips the gradients, and calls an AdamW of torch's on
its share, with the numbers of `MasterOptimizer`. Stages 2 and 3 sum over micro-batches in float32;
stage 1 sums in the weights' dtype, since DeepSpeed takes another optimizer for it with float32.
Accelerate only joins the processes. A state is the same as that of `MasterOptimizer`, with whole
tensors, so that either goes on from the other's.

What of DeepSpeed may be asked for is in `trainers/distributed/zero_settings.py`.
"""

import logging
import math
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gymnast.errors import ConfigError, ModelError
from gymnast.trainers.distributed.zero_settings import Zero
from gymnast.trainers.learner.optimizers.by_name import ADAMW, NamedOptimizer
from gymnast.trainers.learner.optimizers.not_finite import why_not_finite
from gymnast.trainers.learner.optimizers.optimizer import Optimizer, check_state
from gymnast.trainers.learner.policy.micro_batches import micro_batch
from gymnast.trainers.learner.policy.shares import placeholder

MOMENTS = ("exp_avg", "exp_avg_sq")


class ZeroPolicy(nn.Module):
    """A policy within DeepSpeed's engine.

    It has no `no_sync`: each backward pass sums over processes what is kept in shares.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """What the policy returns."""
        return self.engine(*arguments, **options)


class ZeroAdamW(Optimizer):
    """AdamW on shares of float32 master weights; every process calls every method.

    Args:
        policy: A `Policy`, whole in each process; stage 3 empties its weights.
        zero: What is shared out.
        learning_rate: At full strength.
        weight_decay: Decoupled.
        warmup_steps: The learning rate grows linearly over this many steps.
        rates: Learning rates of weights that have one of their own.
        named: AdamW with its options; no other optimizer.
        max_norm: Longer gradients are scaled down to this norm.
        device: Of the model.

    Attributes:
        policy: To train with, in place of the policy given.
        adamw: The optimizer that DeepSpeed drives, over this process's share of the weights.

    Raises:
        ConfigError: DeepSpeed is not installed, or the optimizer is another.
        ModelError: The model has no weight to train, or weights of several dtypes.
    """

    def __init__(
        self,
        policy: nn.Module,
        zero: Zero,
        *,
        learning_rate: float,
        weight_decay: float,
        warmup_steps: int,
        rates: Mapping[nn.Parameter, float] | None = None,
        named: NamedOptimizer = ADAMW,
        max_norm: float,
        device: torch.device,
    ) -> None:
        super().__init__(
            policy.parameters(),
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            rates=rates,
        )
        _check_optimizer(named)
        self._shapes = [weight.shape for weight in self.parameters]
        self._max_norm, self._hold = max_norm, False
        by_rate: dict[float, list[nn.Parameter]] = {}
        for weight in self.parameters:
            by_rate.setdefault(self.rates.get(weight, learning_rate), []).append(weight)
        self._rates = list(by_rate)
        groups = [{"params": weights, "lr": 0.0} for weights in by_rate.values()]
        self.adamw = named.make(groups, weight_decay)
        self.adamw.register_step_pre_hook(self._drop_if_held)
        self._engine = _engine(policy, self.parameters, self.adamw, zero, max_norm)
        self.policy = ZeroPolicy(self._engine)
        self._make_state(device)

    def step_if_finite(self, loss: float, max_norm: float) -> float:
        """Clip the gradients and update, or skip the step; see `Optimizer`.

        DeepSpeed itself skips the step where the norm is not finite.
        """
        assert max_norm == self._max_norm, "DeepSpeed was told another norm to clip at"
        self._hold = not math.isfinite(loss)
        for group, own in zip(self.adamw.param_groups, self._rates, strict=True):
            group["lr"] = (own if self.one_rate is None else self.one_rate) * self.next_share
        self._engine.step()
        norm = float(self._engine.get_global_grad_norm())
        if why := why_not_finite(loss, norm):
            self.count_skipped(why)
        else:
            self.count_taken()
        return norm

    @torch.no_grad()
    def forget(self) -> None:
        """Begin anew; see `Optimizer`."""
        for state in self.adamw.state.values():
            for name in MOMENTS:
                state[name].zero_()
        self.forget_counts()
        self._set_steps(0)

    def state_dict(self) -> dict[str, Any]:
        """Everything `load_state_dict` needs to go on exactly; tensors are whole, on the CPU."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        states, masters = {}, []
        for number, weight in enumerate(self.parameters):
            masters.append(safe_get_full_fp32_param(weight).cpu())
            moments = {name: safe_get_full_optimizer_state(weight, name).cpu() for name in MOMENTS}
            states[number] = {"step": torch.tensor(float(self.steps)), **moments}
        return {
            "classes": ADAMW.classes,
            "states": states,
            "found": [[]],
            "master": masters,
            **self.counts(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, also of a `MasterOptimizer`.

        Raises:
            CheckpointError: It is of another model, or of other trained weights.
        """
        import deepspeed
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        check_state(state, self._shapes, ADAMW.classes)
        for number, (weight, master) in enumerate(
            zip(self.parameters, state["master"], strict=True)
        ):
            master = master.to(weight.device)
            moments = state["states"].get(number, {})  # none, where it had no gradient yet
            safe_set_full_fp32_param(weight, master)
            for name in MOMENTS:
                moment = moments.get(name, torch.zeros_like(master))
                safe_set_full_optimizer_state(weight, moment.to(weight.device), name)
            with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
                weight.copy_(master)
        self.restore_counts(state)
        self._set_steps(self.steps)

    def _drop_if_held(self, adamw: torch.optim.Optimizer, *_: Any) -> None:
        """Leave weights and moments as they are: without a gradient AdamW does nothing."""
        if self._hold:
            for group in adamw.param_groups:
                for share in group["params"]:
                    share.grad = None

    def _make_state(self, device: torch.device) -> None:
        """Make AdamW's moments, all zero, which DeepSpeed does in its first step.

        That step has a gradient of zero and a learning rate of zero, and is not counted.
        """
        self.policy(micro_batch([placeholder()], device)).sum().mul(0.0).backward()
        self._engine.step()
        self._set_steps(0)

    def _set_steps(self, steps: int) -> None:
        """Set what AdamW corrects the bias of its moments by."""
        for state in self.adamw.state.values():
            state["step"].fill_(float(steps))


def _check_optimizer(named: NamedOptimizer) -> None:
    """Check that DeepSpeed can share out an optimizer.

    Raises:
        ConfigError: It is not AdamW with the two moments of each weight.
    """
    adamw = named.kind is torch.optim.AdamW and named.others is None
    if not adamw or named.options.get("amsgrad"):
        raise ConfigError(
            f"trainer.optimizer: with DeepSpeed it must be adamw (betas and eps may be set), got "
            f"{named.name}: DeepSpeed hands it shares of flattened weights, and their state is "
            "saved as AdamW's two moments. Share out with FSDP2 (examples/accelerate/fsdp2.yaml)"
        )


def _engine(
    policy: nn.Module,
    parameters: list[nn.Parameter],
    adamw: torch.optim.Optimizer,
    zero: Zero,
    max_norm: float,
) -> Any:
    """DeepSpeed's engine around a policy and its optimizer.

    Raises:
        ConfigError: DeepSpeed is not installed.
        ModelError: The model has weights of several dtypes, or of one that is not taken.
    """
    dtypes = {weight.dtype for weight in policy.parameters()}
    if dtypes not in ({torch.float32}, {torch.bfloat16}):
        named = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise ModelError(
            f"DeepSpeed trains models whose weights are all float32 or all bfloat16, and these are "
            f"{named}: set model.dtype, or share out with FSDP2 (examples/accelerate/fsdp2.yaml)"
        )
    config = {
        "train_micro_batch_size_per_gpu": 1,  # counted by DeepSpeed, and used for nothing
        "managed_gradient_accumulation": False,  # a step ends when `step` is called
        "gradient_clipping": max_norm,
        "zero_optimization": {"stage": zero.stage, **zero.tuning},
        # Unlike that of float32, a broken gradient of bfloat16 is not looked for unless asked.
        "bf16": {"enabled": dtypes == {torch.bfloat16}, "check_grad_overflow": True},
        **({"data_types": {"grad_accum_dtype": "fp32"}} if zero.stage > 1 else {}),
        **zero.printed,
    }
    engine, *_ = _deepspeed().initialize(
        model=policy, model_parameters=parameters, optimizer=adamw, config=config
    )
    return engine


def _deepspeed() -> Any:
    """DeepSpeed, without its chatter.

    Raises:
        ConfigError: It is not installed.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it warns where it has to find that out
    try:
        import deepspeed
        from deepspeed.ops import __compatible_ops__ as compatible
    except ImportError as error:
        raise ConfigError(
            "accelerate launch: distributed_type is DEEPSPEED, and DeepSpeed is not installed: "
            "pip install 'gymnast[deepspeed]'"
        ) from error
    # On CPUs it would compile an exchange of its own, for minutes; gloo is there.
    compatible["deepspeed_shm_comm"] = False
    # It calls torch by names that were replaced.
    warnings.filterwarnings("ignore", r"`torch\.distributed\..*` is deprecated", FutureWarning)
    return deepspeed
