# examples/tutorial/step6.py
from gymnast.envs import Environment, call, tool
from gymnast.sandboxes import SandboxSpec

PLACES = ["beach", "cave", "mill", "tower"]


class Hunt(Environment):
    """Find out where a treasure is, on an island of folders."""

    sandbox_spec = SandboxSpec(timeout_s=10)

    def prepare_sandbox(self, sandbox):
        for place in self.row["places"]:
            what = "A treasure!" if place == self.row["treasure"] else "Only sand."
            sandbox.write_file(f"{place}/chest.txt", f"{what}\n")

    @tool(max_output_tokens=100)
    async def shell(self, command: str) -> str:
        """Run a shell command on the island, where each place is a folder."""
        result = await self.sandbox.aexec(command)
        return result.stdout + result.stderr or "Nothing was printed."

    def sample_row(self, rng):
        question = "Each place of the island is a folder. Whose chest.txt has a treasure?"
        return {"prompt": question, "places": PLACES, "treasure": str(rng.choice(PLACES))}

    def reward(self, episode):
        named = [place for place in self.row["places"] if place in episode.answer]
        return float(named == [self.row["treasure"]])

    def solve(self, row):
        [result] = yield call("shell", command="grep -l treasure */chest.txt")
        yield result["content"].partition("/")[0]
