"""Trackers: where a run's metrics go besides metrics.jsonl, which is always written.

    trackers: [tensorboard]
    trackers: {wandb: {project: shop, name: first}, mlflow: {project: shop}}

    trackers: {"board.py:Board": {url: "http://localhost:8000"}}

They are accelerate's own (`accelerate.tracking`), or subclasses of its `GeneralTracker`: given to
`Trainer`, or named as `gymnast/lookup.py` says. Such a class is called with its settings by name
and, where it has `requires_logging_directory`, with the run's folder as `logging_dir`.

Each tracker works on a thread of its own, in the main process alone, so that it can neither raise
into a run nor hold it up: what it does not take is warned of once and counted. A tracker that ends
the process or holds Python's global lock does end the run or hold it up. When the process is
killed, what a tracker has not taken yet is in metrics.jsonl alone.
"""

import importlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from gymnast.errors import ConfigError
from gymnast.lookup import Names, is_source, no_such
from gymnast.trainers.distributed.processes import together
from gymnast.visible import visible_logger

Named = Sequence[str | GeneralTracker] | Mapping[str, Mapping[str, Any] | None]

ALWAYS = "jsonl"
# What takes the settings of a tracker; its name is also that of its package.
SETTINGS_OF = {
    "tensorboard": "torch.utils.tensorboard:SummaryWriter",
    "wandb": "wandb:init",
    "trackio": "trackio:init",
    "mlflow": "accelerate.tracking:MLflowTracker",
}
TRACKERS: Names[type[GeneralTracker]] = Names(
    "tracker",
    "gymnast.trackers",
    {name: LOGGER_TYPE_TO_CLASS[name] for name in SETTINGS_OF},
    base=GeneralTracker,
    wanted="subclass of accelerate.tracking.GeneralTracker",
)
PROJECT = "gymnast"  # where `project` is left out
START_S = 120.0
FINISH_S = 30.0  # how long the end of a run waits for a tracker
MOST_WAITING = 100  # logs that a tracker has not taken yet
logger = visible_logger(__name__)


class Guarded(GeneralTracker):
    """Runs a tracker on a thread of its own, which works through what it is given.

    Args:
        inner: The tracker; all of its methods are called on that thread.
    """

    requires_logging_directory = False

    def __init__(self, inner: GeneralTracker) -> None:
        self.inner, self.name = inner, inner.name
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._failed = self._dropped = 0
        super().__init__()

    @property
    def tracker(self) -> Any:
        """The object that the tracker wraps, such as wandb's run."""
        return self.inner.tracker

    def start(self) -> None:
        """Start the tracker, and wait until it has started.

        Raises:
            ConfigError: It fails to start, or does not start within `START_S`.
        """
        self._jobs, self._failed, self._dropped = SimpleQueue(), 0, 0
        started: Future[None] = Future()
        self._thread = Thread(
            target=self._work, args=(started,), name=f"gymnast-tracker-{self.name}", daemon=True
        )
        self._thread.start()
        try:
            started.result(START_S)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            if not started.done():
                problem = f"it has not started within {START_S:g} s"
            self._thread = None
            raise ConfigError(
                f"trackers.{self.name}: cannot be started: {' '.join(problem.split())}. Fix its "
                "settings, or leave it out"
            ) from error

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Pass the run's settings on."""
        self._later(partial(self.inner.store_init_configuration, values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Pass metrics on."""
        if self.name == "mlflow":
            values = {mlflow_name(name): value for name, value in values.items()}
        self._later(partial(self.inner.log, values, step=step, **kwargs))

    def finish(self) -> None:
        """End the tracker, and wait for that, at most for `FINISH_S`."""
        if self._thread is None:
            return
        self._jobs.put(self.inner.finish)
        self._jobs.put(None)
        self._thread.join(FINISH_S)
        if self._thread.is_alive():
            self._warn(f"still at work {FINISH_S:g} s after the run, and left behind")
            self._dropped += self._jobs.qsize()
        self._thread = None
        if missed := self._failed + self._dropped:
            logger.warning("tracker %s: did not take %d logs of this run", self.name, missed)

    def _later(self, job: Callable[[], Any]) -> None:
        if self._jobs.qsize() < MOST_WAITING:
            self._jobs.put(job)
        else:
            self._warn(f"{MOST_WAITING} logs behind, and given no more until it takes some")
            self._dropped += 1

    def _work(self, started: Future[None]) -> None:
        try:
            self.inner.start()
        except BaseException as error:  # a library may even call sys.exit
            started.set_exception(
                error if isinstance(error, Exception) else RuntimeError(repr(error))
            )
            return
        started.set_result(None)
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:
                self._warn(f"{type(error).__name__}: {error}")
                self._failed += 1

    def _warn(self, problem: str) -> None:
        """Log a problem, at most once a run."""
        if not self._failed + self._dropped:
            logger.warning("tracker %s: %s; the run goes on", self.name, problem)


def make_trackers(named: Named, output_dir: str | Path | None) -> list[GeneralTracker]:
    """Make trackers for `accelerate.Accelerator(log_with=...)`, without starting them.

    Args:
        named: Names, with or without settings, or trackers.
        output_dir: The run's folder.

    Raises:
        ConfigError: One is unknown, lacks its package, or has no such setting.
    """
    given = named if isinstance(named, Mapping) else dict.fromkeys(named)
    return [
        Guarded(_made(tracker, settings, output_dir))
        for tracker, settings in given.items()
        if tracker != ALWAYS
    ]


def read_named(value: Any) -> Any:
    """Turn the `trackers` of a config, names with or without settings, into names with settings.

    Raises:
        ValueError: It is neither.
    """
    named = isinstance(value, list) and all(isinstance(name, str) for name in value)
    settings = dict.fromkeys(value) if named else value
    if not isinstance(settings, dict):
        raise ValueError("must be a list of names, or a mapping of names to settings")
    return {name: {} if given is None else given for name, given in settings.items()}


def check_names(names: Iterable[str]) -> None:
    """Check that short names of trackers are known; code is imported by `make_trackers`.

    Raises:
        ConfigError: One is not.
    """
    for name in names:
        if name != ALWAYS and not is_source(name) and not TRACKERS.knows(name):
            known = [ALWAYS, *TRACKERS.known()]
            raise ConfigError(f"trackers: {no_such('tracker', name, known)}")


@contextmanager
def tracking(
    accelerator: Accelerator, hyperparameters: Mapping[str, Any], start: int
) -> Iterator[None]:
    """Run the trackers of an accelerator while the block runs; every process calls it.

    Args:
        accelerator: Made with `log_with=make_trackers(...)`.
        hyperparameters: The run's settings; nested names are joined by dots.
        start: The step that the run continues from, 0 at its beginning. What an earlier process
            logged to TensorBoard after this step is replaced.

    Raises:
        ConfigError: A tracker cannot be started.
    """
    if not accelerator.log_with:
        yield
        return
    for tracker in accelerator.log_with:
        if start and tracker.name == "tensorboard" and hasattr(tracker.inner, "init_kwargs"):
            tracker.inner.init_kwargs |= {"purge_step": start + 1}
    try:
        settings = flattened(hyperparameters) or None
        together(accelerator, lambda: accelerator.init_trackers(PROJECT, settings))
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()
        accelerator.trackers.clear()


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics without NaN and infinity, which some trackers refuse."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def mlflow_name(name: str) -> str:
    """A metric's name as MLflow takes it: eval/pass@1 becomes eval/pass_1."""
    return re.sub(r"[^\w./: -]", "_", name)


def as_json(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics with None in place of NaN and infinity, which JSON does not have."""
    return {n: value if math.isfinite(value) else None for n, value in metrics.items()}


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of numbers and texts: `{"trainer.steps": 12, ...}`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            flat[f"{prefix}{key}"] = value
        elif value is not None:
            flat[f"{prefix}{key}"] = json.dumps(value, default=str)
    return flat


def _made(
    tracker: str | GeneralTracker, settings: Mapping[str, Any] | None, output_dir: str | Path | None
) -> GeneralTracker:
    if isinstance(tracker, GeneralTracker):
        return tracker
    cls, given = TRACKERS.find(tracker, "trackers"), dict(settings or {})
    if tracker not in SETTINGS_OF:
        if getattr(cls, "requires_logging_directory", False) is True:
            given["logging_dir"] = output_dir
        return _made_by(cls, tracker, given)
    _check_settings(tracker, given)
    made: GeneralTracker
    if tracker != "tensorboard":
        made = cls(given.pop("project", PROJECT), **given)
    elif output_dir is not None:  # which accelerate joins to the name: output_dir/tensorboard
        made = cls(tracker, output_dir, **given)
    else:
        raise ConfigError("trackers.tensorboard: needs an output_dir, where its files go")
    return made


def _made_by(cls: type[GeneralTracker], name: str, settings: Mapping[str, Any]) -> GeneralTracker:
    """A tracker of a class that is not accelerate's."""
    try:
        return cls(**settings)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"trackers.{name}: {cls.__name__} cannot be made: {problem}") from error


def _check_settings(tracker: str, settings: Mapping[str, Any]) -> None:
    """Check that a tracker's package is installed and has these settings."""
    module, _, function = SETTINGS_OF[tracker].partition(":")
    try:
        importlib.import_module(tracker)
        takes = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:  # a folder of that name can be imported too
        raise ConfigError(
            f"trackers.{tracker}: needs the package {tracker}: pip install {tracker}  ({error})"
        ) from error
    known = {*inspect.signature(takes).parameters} - {"log_dir", "experiment_name"}
    known |= {"project"} if tracker != "tensorboard" else set()
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"trackers.{tracker}.{name}: unknown setting; there are {', '.join(sorted(known))}"
            )
