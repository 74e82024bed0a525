"""What two families do in evaluation mode alone is turned off."""

import warnings

import pytest
import torch

from gymnast.agents import TransformersAgent
from gymnast.agents.models.evaluation_mode import evaluate
from gymnast.trainers.learner.policy.policy import Policy
from model_families import tiny
from model_gradients import TOLERANCE, difference


@pytest.fixture(autouse=True)
def _no_warnings_of_other_peoples_code() -> None:
    warnings.simplefilter("ignore")


def test_weights_that_a_forward_halved_are_whole_again_and_stay_so() -> None:
    model = tiny("rwkv", rescale_every=2)
    before = [weight.clone() for weight in model.parameters()]
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        logits = model(ids).logits
        assert any(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
        TransformersAgent(model)
        torch.testing.assert_close(model(ids).logits, logits, rtol=0, atol=1e-3)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_gradients_reach_what_is_longer_than_a_chunk() -> None:
    model = tiny("xlstm", max_inference_chunksize=16)
    policy = Policy(model)
    assert difference(model, policy) < TOLERANCE
    ids = torch.arange(3, 43)[None]
    logits = model(ids, use_cache=False).logits
    torch.testing.assert_close(logits[:, :16], model(ids[:, :16], use_cache=False).logits)
    assert logits.grad_fn is not None


def test_other_models_are_only_put_in_evaluation_mode() -> None:
    model = tiny("llama").train()
    config = model.config.to_dict()
    evaluate(model)
    assert not model.training
    assert model.config.to_dict() == config
