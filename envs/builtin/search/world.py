"""A small made-up world: documents about its people, towns and companies, and questions.

Nothing in it can be known without reading: all names are drawn, and another seed draws others.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gymnast.envs.builtin.search.documents import Document

_FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kim", "Lea")
_STARTS = (
    *("Bal", "Cor", "Dor", "Els", "Fal", "Gar", "Hol", "Ir", "Jas", "Kel", "Lor", "Mal", "Nor"),
    *("Os", "Pel", "Quor", "Ras", "Sel", "Tor", "Ul", "Ver", "Wen", "Yar", "Zel"),
)
_MIDDLES = ("a", "e", "i", "o", "an", "en", "in", "on")
_TRADES = (
    *("baker", "carpenter", "dentist", "driver", "farmer", "gardener", "joiner", "lawyer"),
    *("mason", "nurse", "painter", "saddler", "tailor", "vet", "weaver", "writer"),
)
_GOODS = (
    *("bells", "boats", "brushes", "candles", "clocks", "gloves", "kites", "knives", "lamps"),
    *("nets", "pianos", "ropes", "saddles", "scales", "stoves", "tents"),
)
_TOWNS, _COMPANIES, _PEOPLE, _RIVERS, _PROVINCES = 40, 40, 160, 20, 10

Facts = Mapping[str, Any]


class Question(NamedTuple):
    """A kind of question.

    Attributes:
        text: With a place for the name of what it is about.
        about: "person", "town" or "company".
        relations: The facts that lead to the answer, one a document.
    """

    text: str
    about: str
    relations: tuple[str, ...]


QUESTIONS = (
    Question("In which town was {} born?", "person", ("town",)),
    Question("In which year was {} born?", "person", ("year",)),
    Question("For which company does {} work?", "person", ("company",)),
    Question("What is {} by trade?", "person", ("trade",)),
    Question("On which river does {} lie?", "town", ("river",)),
    Question("How many inhabitants has {}?", "town", ("inhabitants",)),
    Question("In which town is the seat of {}?", "company", ("town",)),
    Question("Who founded {}?", "company", ("founder",)),
    Question("On which river does the town lie where {} was born?", "person", ("town", "river")),
    Question("In which province is the town where {} was born?", "person", ("town", "province")),
    Question("Who founded the company for which {} works?", "person", ("company", "founder")),
    Question("In which town is the seat of the company for which {} works?", "person",
             ("company", "town")),
    Question("How many inhabitants has the town where {} has its seat?", "company",
             ("town", "inhabitants")),
    Question("In which town was the founder of {} born?", "company", ("founder", "town")),
)  # fmt: skip


class World:
    """What is the case, and where it is written.

    Args:
        seed: Draws it.

    Attributes:
        seed: The same.
        documents: One about each person, town and company, in a drawn order.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rivers, provinces = _names(rng, "ow", _RIVERS), _names(rng, "land", _PROVINCES)
        towns = _names(rng, "burg", _TOWNS // 2) + _names(rng, "ford", _TOWNS // 2)
        companies = [
            f"{name} {kind}"
            for kind in ("Mills", "Works")
            for name in _names(rng, "co", _COMPANIES // 2)
        ]
        families = _names(rng, "by", _PEOPLE // 3)  # so that each has about three members
        people = [f"{first} {family}" for first in _FIRST for family in families]
        people = [people[i] for i in rng.permutation(len(people))[:_PEOPLE]]
        self.seed = seed
        self._facts: dict[str, dict[str, Facts]] = {"person": {}, "town": {}, "company": {}}
        for town in towns:
            self._facts["town"][town] = {
                "province": _one(rng, provinces),
                "river": _one(rng, rivers),
                "inhabitants": int(rng.integers(10, 1000)) * 100,
            }
        for company in companies:
            self._facts["company"][company] = {
                "goods": _one(rng, _GOODS),
                "founder": _one(rng, people),
                "town": _one(rng, towns),
            }
        for person in people:
            self._facts["person"][person] = {
                "trade": _one(rng, _TRADES),
                "year": int(rng.integers(1900, 2000)),
                "town": _one(rng, towns),
                "company": _one(rng, companies),
            }
        written = [
            Document(name, _TEXTS[kind].format(name=name, **facts))
            for kind, all_facts in self._facts.items()
            for name, facts in all_facts.items()
        ]
        self.documents = [written[i] for i in rng.permutation(len(written))]

    def ask(self, rng: np.random.Generator, hops: int) -> Mapping[str, Any]:
        """A row: a question, its answer, and the documents that lead to it.

        Args:
            rng: Draws it.
            hops: How many documents have to be read: 1 or 2.
        """
        kinds = [question for question in QUESTIONS if len(question.relations) == hops]
        question = kinds[int(rng.integers(len(kinds)))]
        name = _one(rng, list(self._facts[question.about]))
        path, answer = [], name
        for relation in question.relations:
            path.append({"query": answer, "title": answer})
            answer = self._about(answer)[relation]
        return {
            "prompt": question.text.format(name),
            "answer": answer,
            "path": path,
            "world": self.seed,
        }

    def _about(self, name: str) -> Facts:
        return next(facts[name] for facts in self._facts.values() if name in facts)


_TEXTS = {
    "person": "{name} is a {trade} and works for {company}. {name} was born in {year} in {town}.",
    "town": (
        "{name} is a town in the province of {province}. It lies on the river {river} and has "
        "{inhabitants} inhabitants."
    ),
    "company": "{name} makes {goods}. Its seat is in {town}. It was founded by {founder}.",
}


@lru_cache(maxsize=4)
def shared_world(seed: int) -> World:
    """The world of a seed."""
    return World(seed)


def _names(rng: np.random.Generator, ending: str, count: int) -> list[str]:
    """Different names with an ending."""
    known = [f"{start}{middle}{ending}" for start in _STARTS for middle in _MIDDLES]
    return [known[i] for i in rng.permutation(len(known))[:count]]


def _one(rng: np.random.Generator, of: Sequence[str]) -> str:
    return of[int(rng.integers(len(of)))]
