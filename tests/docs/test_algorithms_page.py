"""docs/algorithms.md: its formulas can be drawn, its numbers hold, its figures are up to date."""

import re
from statistics import mean, stdev

import pytest
import torch

from algorithm_curves import FIGURES, LETTERS, Figure, svg
from gymnast.trainers import RewardBatch
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.algorithms.aggregations import AGGREGATIONS
from gymnast.trainers.algorithms.algorithm import PRESETS
from gymnast.trainers.algorithms.losses import LOSSES
from gymnast.trainers.algorithms.registry import Registry
from pages import ROOT

PAGE = (ROOT / "docs/algorithms.md").read_text()
FORMULAS = re.findall(r"\$\$(.+?)\$\$", PAGE, re.DOTALL) + re.findall(
    r"(?<!\$)\$(?!\$)([^$\n]+)\$(?!\$)", PAGE
)
GROUPS = ([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0])
SHOWN = (0, 1, 4, 7)  # which of these eight episodes the page shows
EPSILON = 1e-4


def section(title: str) -> str:
    """The text below a heading of the third level."""
    return re.split(r"^##", PAGE.partition(f"\n### {title}\n")[2], flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("title", "registry"),
    [("Estimators", ESTIMATORS), ("Losses", LOSSES), ("Aggregations", AGGREGATIONS)],
)
def test_each_of_gymnasts_own_has_a_formula(title: str, registry: Registry[object]) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)$", section(title), re.MULTILINE)[::-1])
    parts = registry.values()
    own = {p.function.__name__ for p in parts if p.function.__module__.startswith("gymnast.")}
    assert own == set(rows)
    assert not [name for name, row in rows.items() if "$" not in row]


@pytest.mark.docs
def test_formulas_can_be_drawn() -> None:
    """By what draws them on the site (docs/formulas.py)."""
    from docutils.utils.math.latex2mathml import tex2mathml

    assert all(tex2mathml(formula) for formula in FORMULAS)


def test_formulas_stand_in_cells_and_lines() -> None:
    assert len(FORMULAS) > 50
    for formula in FORMULAS:
        assert formula == formula.strip() or "\n" in formula
        assert "|" not in formula  # which would end a cell of a table


def numbers() -> dict[str, list[float]]:
    """The page's example, by estimator."""
    rows = re.findall(r"^\| `(\w+)` \|((?: -?\d\.\d{3} \|){4})$", PAGE, re.MULTILINE)
    return {name: [float(cell) for cell in cells.split("|")[:4]] for name, cells in rows}


def test_the_numbers_of_the_example_are_those_of_the_code() -> None:
    rewards = [reward for group in GROUPS for reward in group]
    batch = RewardBatch(
        torch.tensor(rewards),
        torch.tensor([number for number, group in enumerate(GROUPS) for _ in group]),
        [[reward] for reward in rewards],
        action_tokens=[[1]] * len(rewards),
        token_rewards=[torch.tensor([reward]) for reward in rewards],
        states=[["start"]] * len(rewards),
    )
    shown = numbers()
    assert len(shown) > 10
    for name, expected in shown.items():
        advantages = [float(values[0]) for values in ESTIMATORS[name](batch)]
        assert [advantages[i] for i in SHOWN] == pytest.approx(expected, abs=5e-4), name


def test_the_formulas_give_the_numbers_of_the_example() -> None:
    """The page's formulas, written down once more."""
    rewards = [reward for group in GROUPS for reward in group]
    group = [of for of in GROUPS for _ in of]
    centred = [r - mean(g) for r, g in zip(rewards, group, strict=True)]
    parts = [c / (stdev(g) + EPSILON) for c, g in zip(centred, group, strict=True)]
    formulas = {
        "grpo": parts,
        "dr_grpo": centred,
        "rloo": [len(g) / (len(g) - 1) * c for c, g in zip(centred, group, strict=True)],
        "reinforce_pp": [(r - mean(rewards)) / (stdev(rewards) + EPSILON) for r in rewards],
        "reinforce_pp_baseline": [c / (stdev(centred) + EPSILON) for c in centred],
        "gdpo": [part / (stdev(parts) + EPSILON) for part in parts],
        "rejection": [float(r >= 1.0) for r in rewards],
        "turn_level": parts,
        "gigpo": [2 * part for part in parts],
        "state_baseline": centred,
        "reinforce_pp_tokens": [
            (r - mean(rewards)) / (stdev(rewards) ** 2 + 1e-8) ** 0.5 for r in rewards
        ],
        "gdpo_tokens": [(part - mean(parts)) / (stdev(parts) ** 2 + 1e-8) ** 0.5 for part in parts],
    }
    shown = numbers()
    assert set(shown) == set(formulas)
    for name, values in formulas.items():
        assert shown[name] == pytest.approx([values[i] for i in SHOWN], abs=5e-4), name


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_shows_what_was_measured(figure: Figure) -> None:
    """`python benchmarks/algorithm_curves.py` draws it anew."""
    assert figure.path.read_text() == svg(figure)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_is_shown_with_its_commits_and_its_machine(figure: Figure) -> None:
    _, shown, after = PAGE.partition(f"![{figure.words}](images/{figure.name}.svg)")
    assert shown
    caption = after.strip().split("\n\n")[0]
    curves = figure.curves().values()
    assert {curve.commit for curve in curves} == set(re.findall(r"\b[0-9a-f]{7}\b", caption))
    machine = re.compile("2 cores, 1 torch threads|torch 2.13.0")
    assert {len(machine.findall(curve.conditions)) for curve in curves} == {2}
    said = " ".join(caption.split())
    assert "likewise" in said or "Two cores, one thread, PyTorch 2.13.0" in said


def test_every_name_that_learns_from_rewards_has_a_panel() -> None:
    named = set(PRESETS) | {*ESTIMATORS}
    own = {n for n in named if n in PRESETS or ESTIMATORS[n].function.__module__[:7] == "gymnast"}
    assert own - {"distillation"} == set(LETTERS)
