"""Which rows a step plays, by the settings of a run.

off                 those that the step's number says                       (cursor.py)
dynamic sampling    as many as it takes; the next step goes on after them   (cursor.py)
a curriculum        those that pass about as often as they fail             (curriculum.py)
"""

from gymnast.trainers.data.curriculum import Curriculum
from gymnast.trainers.data.cursor import CursorRows, StepRows
from gymnast.trainers.data.rows import RowSource
from gymnast.trainers.data.settings import RowSettings


def step_rows(
    source: RowSource, settings: RowSettings, rows_per_step: int, seed: int, place: str = ""
) -> StepRows:
    """The rows of a run's steps.

    Args:
        source: Of the training rows.
        settings: The run's.
        rows_per_step: How many groups a step is to train on.
        seed: The run's.
        place: What precedes the settings' names in errors: "trainer.".

    Raises:
        ConfigError: The settings do not go together, or not with the source.
    """
    most = settings.most_rows(rows_per_step, place)
    if settings.curriculum is not None:
        return Curriculum(source, most, settings.curriculum, seed=seed, place=place)
    if settings.dynamic_sampling is not None:
        return CursorRows(source, most, rows_per_step)
    return StepRows(source, most)
