"""What some models do in evaluation mode alone, and what training in that mode cannot have.

Policies are trained in evaluation mode (`trainers/learner/policy/policy.py`), and sample in it.
RWKV halves the weights of its layers in place there, every few layers once more, for the sake of
float16: a learner would find other weights than it wrote. xLSTM computes sequences beyond a length
in chunks, without a gradient. Neither is a part of the model (halved hidden states meet the same
epsilon of the norms, which is all that differs), so both are turned off, in the configuration that
is saved with the model too.
"""

from typing import Any

import torch

# Of a configuration: longer sequences are computed in chunks (xLSTM).
CHUNKED_BEYOND = "max_inference_chunksize"
NEVER = 2**62  # tokens


@torch.no_grad()
def evaluate(model: Any) -> None:
    """Put a model in evaluation mode, in which it computes as in training, but for dropout.

    Args:
        model: Of Transformers, or of peft around one.
    """
    model.eval()
    config = model.config.get_text_config()
    if hasattr(config, CHUNKED_BEYOND):
        setattr(config, CHUNKED_BEYOND, NEVER)
    if getattr(config, "rescale_every", 0) and model.dtype != torch.float16:
        for module in model.modules():
            if getattr(module, "layers_are_rescaled", False):
                module.training = True  # how it is told to restore its weights
                module._rescale_layers()
                module.training = False
        config.rescale_every = 0
