"""A run that starts a vLLM server, hands weights over, says so, and waits to be killed.

python vllm_program.py COMMAND WEIGHTS_FOLDER
"""

import sys
import time

import torch

from gymnast.agents import PolicyWeights, make_agent
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from vllm_fixtures import ENVIRONMENT, OPTIONS

model = tiny_model().to(torch.bfloat16)
agent = make_agent(
    *(model, tiny_tokenizer()),
    backend="vllm",
    launch={"command": [sys.argv[1]], "options": OPTIONS, "environment": ENVIRONMENT},
    weights_folder=sys.argv[2],
)
agent.update_weights(PolicyWeights(model), 1)
print("ready", flush=True)
time.sleep(3600)
