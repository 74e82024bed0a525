"""Optimizers by name: any class like torch's is a line of YAML; a mistake is one sentence."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.errors import CheckpointError, ConfigError
from gymnast.trainers.learner.optimizers.by_name import named_optimizer
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer

SHAPES = [(64, 72), (72,), (80, 64)]  # a matrix, a vector, an embedding
GENERATOR = torch.Generator().manual_seed(0)
STARTS = [torch.randn(shape, generator=GENERATOR) for shape in SHAPES]
GRADIENTS = [[torch.randn(s, generator=GENERATOR) for s in SHAPES] for _ in range(6)]


def made(spec: Any, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> MasterOptimizer:
    """An optimizer over a matrix, a vector and an embedding."""
    weights = [torch.nn.Parameter(start.to(dtype, copy=True)) for start in STARTS]
    return MasterOptimizer(
        weights,
        learning_rate=1e-2,
        warmup_steps=4,
        named=named_optimizer(spec),
        others={weights[1]: "norm.weight", weights[2]: "embed_tokens.weight"},
        **settings,
    )


def take_steps(optimizer: MasterOptimizer, steps: Sequence[Sequence[torch.Tensor]]) -> None:
    for gradients in steps:
        for weight, gradient in zip(optimizer.parameters, gradients, strict=True):
            weight.grad = gradient.to(weight.dtype, copy=True)
        optimizer.step(optimizer.gather_gradients(), 1e9)


def goes_on_exactly(spec: Any) -> bool:
    """Whether a run that is cut and resumed is the whole one, bit for bit, and has learned."""
    whole, cut, again = (made(spec) for _ in range(3))
    take_steps(whole, GRADIENTS)
    take_steps(cut, GRADIENTS[:3])
    file = io.BytesIO()
    torch.save(cut.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    take_steps(again, GRADIENTS[3:])
    for start, one, other in zip(STARTS, whole.master, again.master, strict=True):
        assert torch.equal(one, other) and not torch.allclose(one, start)
    return again.last_learning_rate == whole.last_learning_rate == 1e-2


SPECS: dict[str, Any] = {
    "AdamW with options": {"name": "adamw", "betas": [0.8, 0.9], "eps": 1e-4, "amsgrad": True},
    "SGD": {"name": "torch.optim:SGD", "momentum": 0.9},
    "Adafactor": "torch.optim:Adafactor",  # its state is smaller than the weights
    "Muon": {"name": "torch.optim:Muon", "others": {"name": "adamw", "eps": 1e-6}},
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_a_saved_state_of_any_optimizer_goes_on_exactly(spec: Any) -> None:
    assert goes_on_exactly(spec)


@pytest.mark.slow  # torchao compiles its steps, which takes a minute
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["bitsandbytes.optim:AdamW8bit", "torchao.optim:AdamW8bit", "torchao.optim:AdamW4bit"]
)
def test_states_of_eight_and_four_bits_go_on_exactly(name: str) -> None:
    """Both packages are installed by whoever wants them: `pip install torchao bitsandbytes`."""
    pytest.importorskip(name.partition(".")[0])
    assert goes_on_exactly(name)


def test_options_and_the_runs_settings_reach_the_optimizer() -> None:
    ours = made(
        {"name": "adamw", "betas": [0.5, 0.6], "eps": 1e-3}, torch.float32, weight_decay=0.1
    )
    weights = [torch.nn.Parameter(start.clone()) for start in STARTS]
    theirs = torch.optim.AdamW(weights, betas=(0.5, 0.6), eps=1e-3, weight_decay=0.1)
    for step, gradients in enumerate(GRADIENTS, start=1):
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(weights, 1e9)
        theirs.param_groups[0]["lr"] = 1e-2 * min(1.0, step / 5)
        theirs.step()
    take_steps(ours, GRADIENTS)
    assert all(torch.equal(a, b) for a, b in zip(ours.master, weights, strict=True))


def test_muon_has_the_matrices_within_layers_and_the_other_has_the_rest() -> None:
    ours = made({"name": "torch.optim:Muon", "others": "adamw"}, torch.float32)
    take_steps(ours, GRADIENTS[:1])
    states = ours.state_dict()["states"]
    assert [sorted(states[number]) for number in range(3)] == [
        ["momentum_buffer"],
        ["exp_avg", "exp_avg_sq", "step"],
        ["exp_avg", "exp_avg_sq", "step"],
    ]
    # AdamW's first step is as long as the learning rate, here a fifth of it.
    moved = (ours.master[1] - STARTS[1]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 2e-3), rtol=1e-3, atol=0)


def test_muon_alone_says_which_weights_it_does_not_take_and_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        made("torch.optim:Muon")
    assert str(caught.value) == (
        "trainer.optimizer: torch.optim:Muon: Muon only supports 2D parameters whereas we found a "
        "parameter with size: torch.Size([72]). Weights that are no matrices: norm.weight. With "
        "`others: adamw` beside its name, these, embeddings and the head are AdamW's"
    )


def test_weights_with_a_rate_of_their_own_take_it_also_after_they_are_resumed() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    rates = {weights[1]: 0.2}
    optimizer = MasterOptimizer(weights, learning_rate=0.1, warmup_steps=1, rates=rates)
    optimizer.scheduled = 0.5
    ones = [torch.ones(1)] * 3
    take_steps(optimizer, [ones])
    assert [w.item() for w in weights] == pytest.approx([-0.025, -0.05, -0.025], rel=1e-4)
    assert optimizer.learning_rates() == {
        "learning_rate": pytest.approx(0.025),
        "learning_rate/adapters": pytest.approx(0.05),
    }
    # Another division into groups takes the same moments over, weight by weight.
    again = MasterOptimizer([torch.nn.Parameter(torch.zeros(1)) for _ in range(3)], learning_rate=1)
    again.load_state_dict(optimizer.state_dict())
    before, after = (o.state_dict()["states"] for o in (optimizer, again))
    assert before == after
    assert again.last_learning_rate == 0.25, "of the step that was taken before"


def test_another_optimizers_checkpoint_is_refused() -> None:
    before, after = made("adamw"), made("torch.optim:SGD")
    take_steps(before, GRADIENTS[:1])
    with pytest.raises(CheckpointError, match="the state of AdamW, from which SGD cannot go on"):
        after.load_state_dict(before.state_dict())


WRONG: dict[str, tuple[Any, str]] = {
    "a typo": ("adam", r"there is no optimizer 'adam'. Did you mean 'adamw'\?"),
    "a typo in a module": ("torch.optim:Moun", "has no 'Moun'. Did you mean 'Muon'?"),
    "no optimizer": ("torch.nn:Linear", "is no subclass of torch.optim.Optimizer"),
    "an option's typo": ({"name": "adamw", "beta": 1}, "adamw has no option 'beta'. Did you mean"),
    "a setting as an option": (
        {"name": "adamw", "lr": 1e-3},
        "adamw: leave lr out, and set trainer.learning_rate",
    ),
    "an option out of range": (
        {"name": "adamw", "betas": [0.9, 1.5]},
        "adamw with {'betas': (0.9, 1.5)}: Invalid beta parameter at index 1: 1.5",
    ),
    "an option of another type": ({"name": "adamw", "eps": "1e-8"}, "adamw with {'eps': '1e-8'}: "),
    "a loss in every step": ("torch.optim:LBFGS", "computes the loss again in each step"),
    "wrong others": ({"name": "torch.optim:Muon", "others": "adm"}, "there is no optimizer 'adm'"),
    "others of another type": (
        {"name": "torch.optim:Muon", "others": ["adamw"]},
        "torch.optim:Muon: others must be one optimizer",
    ),
    "others of others": (
        {"name": "torch.optim:Muon", "others": {"name": "torch.optim:Muon", "others": "adamw"}},
        "torch.optim:Muon: others must be one optimizer",
    ),
}


@pytest.mark.parametrize(("spec", "message"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_with_an_optimizer(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        named_optimizer(spec)
    assert message.replace("\\", "") in str(caught.value)


def test_an_optimizer_without_a_learning_rate_or_a_weight_decay(tmp_path: Path) -> None:
    file = tmp_path / "sign.py"
    file.write_text(
        "import torch\n"
        "class Free(torch.optim.Optimizer):\n"
        "    def __init__(self, params): super().__init__(params, {})\n"
        "class Sign(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr): super().__init__(params, {'lr': lr})\n"
        "    def step(self, closure=None):\n"
        "        for group in self.param_groups:\n"
        "            for weight in group['params']:\n"
        "                weight.data -= group['lr'] * weight.grad.sign()\n"
    )
    with pytest.raises(ConfigError, match="Free takes no learning rate"):
        named_optimizer(f"{file}:Free")
    with pytest.raises(ConfigError, match=r"has no weight_decay; leave trainer\.weight_decay out"):
        made(f"{file}:Sign", weight_decay=0.1)
    assert goes_on_exactly(f"{file}:Sign")
