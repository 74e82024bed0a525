"""An agent that is trained: how it takes new weights, and when it may sample.

with agent.awake():                     the trainer plays episodes
await agent.generate(...)
...                                     the agent rests, the learner works
agent.update_weights(weights, version)  in every process, before anybody samples again

With `trainer.max_staleness` the agent is awake all the while, and gets new weights while requests
are under way. One that `samples_while_training` goes on sampling; others take turns:

with agent.awake():
    with agent.learning():              requests wait, the learner works
        agent.update_weights(...)
        with agent.awake(): ...         the trainer waits for episodes
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gymnast.agents.base import Agent
from gymnast.agents.models.merging import merged_weights
from gymnast.errors import ConfigError


@dataclass(frozen=True)
class PolicyWeights:
    """The weights of the policy as they are now, whole tensors, one at a time.

        for name, weight in weights:  # of a model without adapters
            send(name, weight)

    An agent reads what it needs, in every process or in one. The tensors may be the trained ones:
    copy them, never change or keep them. They hold until `update_weights` returns.

    Attributes:
        model: The model that is trained, whole, with its adapters if it has any. An agent that
            samples with this very model has nothing to copy.
        process_index: Of this training process. Where the agents of several processes share a
            server, that of process 0 sends.
        sent: What the agent of process 0 returned from `send_weights`; None where it has none.
    """

    model: Any
    process_index: int = 0
    sent: Any = None

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight under its name in a model without adapters; adapters are merged in."""
        return merged_weights(self.model)

    def adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The adapters alone, named as in a file of peft's; nothing where there are none."""
        if hasattr(self.model, "peft_config"):
            from peft import get_peft_model_state_dict

            yield from get_peft_model_state_dict(self.model, save_embedding_layers=False).items()


class PolicyAgent(Agent, Protocol):
    """Samples completions from the policy while it is trained.

    It may hold the trained model itself, a copy of it, or none at all: a server in another process
    has its own. Every training process has an agent object, which samples that process's rows.

    A complete small agent (docs/agents.md has its imports):

        class Copy:
            # Samples with a model of its own, and computes every context anew.

            def __init__(self, model, tokenizer):
                self.model = AutoModelForCausalLM.from_config(model.config).eval()
                self.context_length = model.config.max_position_embeddings

            def awake(self):
                return contextlib.nullcontext()  # its model is not the one that is trained

            def update_weights(self, weights, version):
                self.version, own = version, dict(self.model.named_parameters())
                with torch.no_grad():
                    for name, weight in weights:
                        own[name].copy_(weight)

            async def generate(self, context_ids, sampling):
                ids, logprobs, stop = [], [], "length"
                most = min(sampling.max_new_tokens, self.context_length - len(context_ids))
                while stop == "length" and len(ids) < most:
                    with torch.no_grad():
                        logits = self.model(torch.tensor([context_ids + ids])).logits[0, -1]
                    tokens = Categorical(logits=logits / max(sampling.temperature, 1e-6))
                    token = tokens.sample()
                    ids.append(int(token))
                    logprobs.append(float(tokens.log_prob(token)))
                    stop = "stop" if ids[-1] in sampling.stop_ids else "length"
                versions = [VersionSpan(0, len(ids), self.version)]
                return Completion(ids, logprobs, stop, versions=versions)

    With `trainer.max_staleness` above 0 episodes are under way while the model is trained. That
    takes one of two things; an agent that has neither is refused there:

    - an attribute `samples_while_training`, true: it samples without the trained model;
    - a method `learning()`, which returns a context manager. Within the block the learner has the
      model: nothing of the agent computes, the model is as it is trained, and requests wait. A
      block of `awake` within it samples again, until its end. At the end of the block they all go
      on. Outside of `awake` it does nothing.

    `update_weights` is called while requests are under way, in a block of `learning` where there is
    that method. They go on from the new weights, or end with the old ones: `Completion.versions`
    says which weights sampled which tokens, all of them. Nothing that the old weights computed
    serves a request that comes later. An attribute `kept_across_weights` may count the requests
    that went on with keys and values of older weights. An attribute `kv_budget_bytes` says how much
    memory these take at most in this process: a step of training leaves them room. An attribute
    `sampling_s` may count the seconds in which at least one request was under way and not held by
    `learning`: the shares of a step (`perf/sampling_share`, `perf/waiting_share`) are made of it.

    `metrics()`, if there is one, returns numbers by name (`area/name`), counted since it was last
    called. They go into the metrics of every step, those of several processes added up.

    `send_weights(weights, version)`, if there is one, is called in process 0 alone, before
    `update_weights` anywhere. It gives the weights to what all processes share, and returns
    something that can be pickled: in every process it is `weights.sent`.

    An agent that starts processes ends them itself when Python ends (`weakref.finalize`).
    `generate_all`, if there is one, gets the requests of a round together; see
    `TransformersAgent.generate_all`.
    """

    @property
    def context_length(self) -> int:
        """The longest context with its completion, in tokens."""
        ...

    def awake(self) -> AbstractContextManager[None]:
        """Within the block completions may be asked for; outside of it the agent rests.

        At the end nothing of it computes any more, also after requests that were cancelled, and
        memory that the learner could use is given back. An agent on a device of its own has
        nothing to do. Blocks may be nested; the outermost one counts.
        """
        ...

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        """Take new weights; on return every later completion is sampled from them.

        Every training process calls it: before the first completion, those of a resumed run
        included, and after every step. Nobody samples before all processes have returned, unless
        the agent `samples_while_training`.

        Args:
            weights: What to sample from.
            version: How many steps were taken, with which completions are tagged.

        Raises:
            Exception: The weights cannot be taken: the run ends, and its last step is saved.
        """
        ...


def samples_while_training(agent: PolicyAgent) -> bool:
    """Return whether an agent samples without the trained model."""
    return bool(getattr(agent, "samples_while_training", False))


def allows_staleness(agent: PolicyAgent) -> bool:
    """Return whether requests may be under way while the model is trained."""
    return samples_while_training(agent) or hasattr(agent, "learning")


def learning(agent: PolicyAgent) -> AbstractContextManager[None]:
    """Give the learner the model within the block; see `PolicyAgent`."""
    block: AbstractContextManager[None] = getattr(agent, "learning", nullcontext)()
    return block


def sampling_seconds(agent: PolicyAgent) -> float | None:
    """Return the seconds in which a request was under way so far; None where nobody counts them."""
    return getattr(agent, "sampling_s", None)


def kv_beside_model(agent: PolicyAgent) -> int | None:
    """Return the bytes that keys and values may take next to the trained model; None: unknown."""
    return None if samples_while_training(agent) else getattr(agent, "kv_budget_bytes", None)


def kv_held(agent: PolicyAgent) -> int:
    """Return the bytes of keys and values that an agent holds also while it has nothing to do."""
    return int(getattr(agent, "kv_held_bytes", 0))


def kv_while_learning(agent: PolicyAgent, *, requests_wait: bool) -> int:
    """Return the bytes of keys and values while the learner works, at most.

    Args:
        agent: That samples.
        requests_wait: Whether requests are under way meanwhile.
    """
    return (kv_beside_model(agent) or 0) if requests_wait else kv_held(agent)


def check_policy_agent(agent: Any) -> None:
    """Check that an agent has what training needs.

    Raises:
        ConfigError: It lacks something; names all of it.
    """
    needed = ("generate", "context_length", "awake", "update_weights")
    missing = [name for name in needed if not hasattr(agent, name)]
    if missing:
        raise ConfigError(
            f"agent: must be a gymnast.agents.PolicyAgent, and {agent!r:.100} has no "
            f"{', '.join(missing)}"
        )
