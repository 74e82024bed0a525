"""Two toolsets of three calls, each of which needs the result of the one before.

What the calls return is drawn for each row and stands in no prompt, so that no answer can be
learned by heart.
"""

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from gymnast.envs import Environment, Episode, call, tool

ROOMS = ["kitchen", "attic", "garden", "cellar", "stable", "library"]
METALS = ["iron", "brass", "silver", "copper", "tin", "gold"]
ANIMALS = ["fox", "owl", "bear", "hare", "swan", "wolf"]
GEMS = ["ruby", "pearl", "amber", "opal", "jade", "topaz"]
PEOPLE = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"]
CITIES = ["Rome", "Oslo", "Lima", "Cairo", "Paris", "Delhi"]

Solution = Generator[Any, list[dict[str, Any]], None]


class Chest(Environment):
    """Say what is in the chest: 1.0 if it was opened with the right key and the gem is named."""

    def sample_row(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw where the note lies, and what opens and is in the chest."""

        def pick(values: list[str]) -> str:
            return str(rng.choice(values))

        room = pick(ROOMS)
        return {
            "prompt": f"The note is in the {room}. What is in the chest?",
            "room": room,
            "metal": pick(METALS),
            "animal": pick(ANIMALS),
            "gem": pick(GEMS),
            "number": int(rng.integers(10**9)),
        }

    def setup(self, row: Mapping[str, Any]) -> None:
        """Leave everything untouched."""
        self.read = self.taken = self.opened = False

    @tool
    def read_note(self, room: str) -> str:
        """Read the note in a room."""
        if room != self.row["room"]:
            raise ValueError("there is no note")
        self.read = True
        return str(self.row["metal"])

    @tool
    def take_key(self, metal: str) -> str:
        """Take the key of a metal."""
        if not self.read or metal != self.row["metal"]:
            raise ValueError("there is no such key")
        self.taken = True
        return str(self.row["animal"])

    @tool
    def open_chest(self, animal: str) -> str:
        """Open the chest that bears an animal."""
        if not self.taken or animal != self.row["animal"]:
            raise ValueError("it stays shut")
        self.opened = True
        return str(self.row["gem"])

    def reward(self, episode: Episode) -> float:
        """1.0 for the gem of an opened chest."""
        words = episode.answer.lower().rstrip(".").split()
        return float(self.opened and self.row["gem"] in words)

    def solve(self, row: Mapping[str, Any]) -> Solution:
        """Follow the note to the key and the key to the chest."""
        [metal] = yield call("read_note", room=row["room"])
        [animal] = yield call("take_key", metal=metal["content"])
        [gem] = yield call("open_chest", animal=animal["content"])
        yield gem["content"]


class Courier(Environment):
    """Say what a parcel costs: 1.0 for the fee of the zone of the city of a person."""

    def sample_row(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw a person, their city, its zone and the zone's fee."""
        person = str(rng.choice(PEOPLE))
        return {
            "prompt": f"What does a parcel to {person} cost?",
            "person": person,
            "city": str(rng.choice(CITIES)),
            "zone": int(rng.integers(1, 10)),
            "fee": int(rng.integers(10, 100)),
            "number": int(rng.integers(10**9)),
        }

    def setup(self, row: Mapping[str, Any]) -> None:
        """Begin without having looked up anything."""
        self.known: set[str] = set()

    @tool
    def city_of(self, person: str) -> str:
        """Look up the city of a person."""
        if person != self.row["person"]:
            raise ValueError("nobody has this name")
        self.known.add("city")
        return str(self.row["city"])

    @tool
    def zone_of(self, city: str) -> int:
        """Look up the zone of a city."""
        if "city" not in self.known or city != self.row["city"]:
            raise ValueError("there is no such city")
        self.known.add("zone")
        return int(self.row["zone"])

    @tool
    def fee_of(self, zone: int) -> int:
        """Look up the fee of a zone."""
        if "zone" not in self.known or zone != self.row["zone"]:
            raise ValueError("there is no such zone")
        self.known.add("fee")
        return int(self.row["fee"])

    def reward(self, episode: Episode) -> float:
        """1.0 for the fee, if it was looked up."""
        words = episode.answer.rstrip(".").split()
        return float("fee" in self.known and str(self.row["fee"]) in words)

    def solve(self, row: Mapping[str, Any]) -> Solution:
        """Look up the city, the zone and the fee."""
        [city] = yield call("city_of", person=row["person"])
        [zone] = yield call("zone_of", city=city["content"])
        [fee] = yield call("fee_of", zone=int(zone["content"]))
        yield f"It costs {fee['content']}."
