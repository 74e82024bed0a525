"""A reward of several rubrics, in the class; examples/rubrics.yaml adds one of the run's own."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gymnast.envs import Environment, Episode, rubrics


class Report(Environment):
    """Report a temperature as a JSON object: {"city": "Bern", "celsius": 21}."""

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Ask for one of three cities, at some temperature."""
        city, celsius = str(rng.choice(["Bern", "Oslo", "Rome"])), int(rng.integers(-9, 40))
        prompt = f"It is {celsius} degrees in {city}. Report it as JSON: city, celsius."
        return {"prompt": prompt, "city": city, "celsius": celsius}

    def solve(self, row: Mapping[str, Any]) -> list[str]:
        """The object."""
        return [f'{{"city": "{row["city"]}", "celsius": {row["celsius"]}}}']

    def brief(self, episode: Episode) -> bool:
        """Whether there is little beside the object; a method may be a part as well."""
        return len(episode.answer) <= 60

    reward = rubrics.gate(
        json=rubrics.json_schema({"type": "object", "required": ["city", "celsius"]}),
        report=rubrics.all_of(
            city=rubrics.exact("city", extract=r'"city": *"(.*?)"'),
            celsius=rubrics.weighted(rubrics.numeric("celsius", tolerance=0.5), 2.0),
            brief=brief,
        ),
    )
