"""What an agent is: something that continues a context of token ids.

Agents know token ids and nothing of environments, messages or tools.
"""

from typing import Protocol

from gymnast.types import Completion, Sampling


class Agent(Protocol):
    """Samples completions.

    A complete small agent, which always says the same:

        class Parrot:
            async def generate(self, context_ids, sampling):
                ids = [17, *sampling.stop_ids[:1]][: sampling.max_new_tokens]
                stopped = bool(sampling.stop_ids) and ids[-1] == sampling.stop_ids[0]
                return Completion(ids, [0.0] * len(ids), "stop" if stopped else "length")
    """

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion.

        The call is stateless: the whole context comes with every call. Many calls may be under
        way at once.

        Args:
            context_ids: Prompt, actions and observations so far. Do not change the list.
            sampling: How to sample, where to stop, and how many tokens at most.

        Returns:
            The sampled ids, the stop token included, and the log-probability of each under the
            distribution it was drawn from.

        Raises:
            InfrastructureError: The sampler is broken; the episode is tried again.
        """
        ...
