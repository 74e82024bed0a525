"""The agent that `agent: {backend: vllm, ...}` of a YAML names, with the servers that it starts."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from gymnast.agents.vllm.checks import check_settings, of_agent
from gymnast.agents.vllm.experts import RETURN_EXPERTS, ExpertLayers
from gymnast.agents.vllm.launch import Launched, make_launch
from gymnast.agents.vllm.launch_for_all import launch_for_all
from gymnast.agents.vllm.weights.choice import AUTO
from gymnast.agents.vllm.weights.sleeping import explained
from gymnast.agents.vllm.weights.start import write_start
from gymnast.agents.vllm_agent import LOST_AFTER_S, VLLMAgent


def trained_vllm_agent(
    model: Any,
    tokenizer: Any,
    *,
    urls: Sequence[str] | None = None,
    launch: Mapping[str, Any] | None = None,
    served_model: str = "policy",
    api_key_env: str = "VLLM_API_KEY",
    weights: str = AUTO,
    weights_folder: str | None = None,
    request_timeout_s: float = 1800.0,
    lost_after_s: float | None = None,
    share_device: bool = False,
    keep_experts: bool = False,
) -> VLLMAgent:
    """The agent that `agent: {backend: vllm, ...}` of a YAML names.

    Args:
        model: That is trained.
        tokenizer: The model's.
        urls: Of servers that run already; or
        launch: how to start some: the fields of `agents/vllm/launch.py:Launch`. Of several
            training processes on one machine, the first starts them for all.
        served_model: The name that the servers serve the model under.
        api_key_env: See `VLLMAgent`, as for the following.
        weights: How new weights get to the servers.
        weights_folder: For new weights.
        request_timeout_s: For one completion.
        lost_after_s: How long to wait while no server answers; by default 120, and for servers that
            are started `launch.start_timeout_s`, because one that ends is started again.
        share_device: Whether servers that are started take turns with the trainer on one device.
        keep_experts: Have completions say which experts were chosen (`trainer.replay_routing`).

    Raises:
        ConfigError: There are neither URLs nor a launch, or both; or a server cannot be used.
        ModelError: Experts are to be kept, and the model has none that could be replayed.
    """
    with of_agent(urls, launch):
        check_settings(urls, launch, share_device=share_device)
        experts = ExpertLayers.of(model) if keep_experts else None
        launched, api_key = None, None
        wait_s = LOST_AFTER_S if lost_after_s is None else lost_after_s
        if launch is not None:
            how = make_launch(launch)
            if keep_experts:
                how = replace(how, options=[RETURN_EXPERTS, *how.options])
            write = partial(write_start, way=weights, shares_device=share_device)
            start = partial(Launched, how, model, tokenizer, served_model, write=write)
            with explained() if share_device else nullcontext():
                launched, (urls, api_key) = launch_for_all(start)
            wait_s = how.start_timeout_s if lost_after_s is None else lost_after_s
        assert urls is not None
        agent = VLLMAgent(
            urls,
            model=served_model,
            tokenizer=tokenizer,
            api_key_env=api_key_env,
            api_key=api_key,
            weights=weights,
            weights_folder=weights_folder,
            request_timeout_s=request_timeout_s,
            lost_after_s=wait_s,
            share_device=share_device,
            experts_of=experts,
        )
        if launched is not None:
            agent._ends.append(launched.end)
        if not share_device:  # which checks it before the servers sleep
            agent.check_takes_weights()
    return agent
