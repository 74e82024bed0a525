# examples/support.py
from gymnast.chat_client import shared_client
from gymnast.envs import Environment


class Support(Environment):
    """Find out which order a customer asks about, whom a model plays."""

    def __init__(self, renderer=None, *, customer=None, **settings):
        super().__init__(renderer, **settings)
        self.customer = None if customer is None else shared_client(**customer)

    def sample_row(self, rng):
        return {"prompt": "Where is my parcel?", "order": int(rng.integers(1000, 10000))}

    async def respond(self, message):
        if str(self.row["order"]) in message["content"]:
            return None
        about = f"You are a customer, and your order is {self.row['order']}. Answer shortly."
        talk = [{"role": "system", "content": about}]
        swapped = {"user": "assistant", "assistant": "user"}
        for each in [*self.messages, message]:
            if each["role"] in swapped and each["content"]:
                talk.append({"role": swapped[each["role"]], "content": each["content"]})
        if self.customer is None:  # the agent itself
            said = await self.ask_agent(talk)
        else:
            said = (await self.customer.complete(talk)).message
        return [{"role": "user", "content": said["content"] or "..."}]

    def reward(self, episode):
        return float(str(self.row["order"]) in episode.answer)
