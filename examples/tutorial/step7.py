# examples/tutorial/step7.py
import re

from gymnast.envs import Environment, call, tool
from gymnast.sandboxes import SandboxSpec

ROOMS = ["hall", "hall/cellar", "hall/cellar/vault", "hall/tower", "hall/tower/attic"]


class Dungeon(Environment):
    """Find the notes of a dungeon and open its chest, in three tries."""

    sandbox_spec = SandboxSpec(timeout_s=10)

    def sample_row(self, rng):
        places = [ROOMS[n] for n in rng.choice(len(ROOMS), size=3, replace=False)]
        code, runes = rng.integers(10, size=3).tolist(), rng.integers(1000, 9999, size=3).tolist()
        notes = [f"Rune {rune}: digit {n} is {code[n - 1]}." for n, rune in enumerate(runes, 1)]
        return {
            "prompt": "Somewhere in the folder hall are three notes with a chest's code. Open it.",
            "notes": dict(zip(places, notes, strict=True)),
            "code": "".join(map(str, code)),
        }

    def prepare_sandbox(self, sandbox):
        for room in ROOMS:
            sandbox.write_file(f"{room}/note.txt", self.row["notes"].get(room, "Dust.") + "\n")

    def setup(self, row):
        self.read, self.tries, self.open = set(), 3, False

    @tool(max_output_tokens=150)
    async def shell(self, command: str) -> str:
        """Run a shell command in the dungeon, where each room is a folder, such as "ls hall"."""
        result = await self.sandbox.aexec(command)
        return result.stdout + result.stderr or "Nothing was printed."

    @tool
    def unlock(self, code: str) -> str:
        """Try a code of three digits on the chest."""
        if not re.fullmatch(r"\d{3}", code):
            raise ValueError(f"{code!r} is no code; a code has three digits")
        self.open, self.tries = code == self.row["code"], self.tries - 1
        if self.open or not self.tries:
            self.end_episode()
        return "It opens." if self.open else f"It stays shut. Tries left: {self.tries}."

    def turn_state(self):
        return len(self.read), self.tries

    def turn_reward(self, turn):
        told = "".join(call.text for call in turn.calls)
        new = {room for room, note in self.row["notes"].items() if note in told} - self.read
        self.read |= new
        return 0.1 * len(new)

    def reward(self, episode):
        return float(self.open)

    def metrics(self, episode):
        return {"notes": len(self.read)}

    def solve(self, row):
        [result] = yield call("shell", command="grep -rh digit hall")
        digits = dict(re.findall(r"digit (\d) is (\d)", result["content"]))
        yield call("unlock", code=digits["1"] + digits["2"] + digits["3"])
