"""vLLM servers as child processes of the run, on 127.0.0.1, ended with it however it ends.

A server that ends by itself is started again, with the weights that the run began with; it gets
those of now before it is asked again (`servers.py`).
"""

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gymnast.agents.loading.model_source import no_progress_bars
from gymnast.agents.models.merging import save_merged
from gymnast.agents.vllm import keeper
from gymnast.errors import ConfigError
from gymnast.lookup import did_you_mean

HOST = "127.0.0.1"
MOST_SOCKET_FOLDER = 70  # in characters: a socket's path has 107 at most, its name in there 36
# What the exactness of the answers rests on.
NEEDED = ("--enable-scale-out", "--logprobs-mode", "processed_logprobs")
# What the run says itself, or would make the served model another than the trained one.
RESERVED = ("--host", "--port", "--served-model-name", "--hf-overrides")
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Launch:
    """How servers are started.

    Attributes:
        command: Of vLLM: `["/path/to/venv/bin/vllm"]`, after which `serve MODEL ...` follows.
        servers: How many.
        options: Further options of `vllm serve`, such as `["--max-model-len", "8192"]`.
        environment: Variables of each server, beside those of this process.
        start_timeout_s: How long the servers may take until they answer.
        log_folder: Where each server writes its output; None is a temporary folder.

    Raises:
        ConfigError: A value does not hold.
    """

    command: Sequence[str]
    servers: int = 1
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 900.0
    log_folder: str | None = None

    def __post_init__(self) -> None:
        if not _is_words(self.command) or not self.command:
            raise ConfigError(
                f"launch.command: must be a list such as [/path/to/venv/bin/vllm], got "
                f"{self.command!r:.100}"
            )
        if not isinstance(self.servers, int) or self.servers < 1:
            raise ConfigError(
                f"launch.servers: must be a whole number >= 1, got {self.servers!r:.100}"
            )
        if not _is_words(self.options):
            raise ConfigError(
                'launch.options: must be a list of texts such as ["--max-model-len", "8192"], got '
                f"{self.options!r:.100}"
            )
        for option in self.options:
            if (name := re.split("[=.]", option)[0]) in RESERVED:
                raise ConfigError(
                    f"launch.options: {name} is set by the run, and by no option: its servers "
                    "sample from the trained model, on addresses of their own. What is to hold of "
                    "the model stands in its config.json (model.name)"
                )
        if not isinstance(self.environment, Mapping) or not _is_words([*self.environment.values()]):
            raise ConfigError(
                'launch.environment: must map names to texts, such as {OMP_NUM_THREADS: "8"}, got '
                f"{self.environment!r:.100}"
            )
        if not isinstance(self.start_timeout_s, int | float) or self.start_timeout_s <= 0:
            raise ConfigError(
                "launch.start_timeout_s: must be > 0, in seconds, got "
                f"{self.start_timeout_s!r:.100}"
            )


def _is_words(value: Any) -> bool:
    """Whether a value is a list of texts."""
    sequence = isinstance(value, Sequence) and not isinstance(value, str)
    return sequence and all(isinstance(word, str) for word in value)


def make_launch(settings: Mapping[str, Any]) -> Launch:
    """How servers are started, from a section of a YAML.

    Raises:
        ConfigError: A field is unknown, missing or wrong.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(
            "launch: must be a mapping such as {command: [/path/to/venv/bin/vllm]}, got "
            f"{settings!r:.100}"
        )
    known = [each.name for each in fields(Launch)]
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known) or f" It has: {', '.join(known)}."
            raise ConfigError(f"launch.{name}: there is no such setting.{hint}")
    if "command" not in settings:
        raise ConfigError("launch.command: is required; give [/path/to/venv/bin/vllm]")
    return Launch(**settings)


WriteModel = Callable[[Any, Path], Sequence[str]]


def _write_merged(model: Any, folder: Path) -> Sequence[str]:
    with no_progress_bars():
        save_merged(model, folder)
    return ()


class Launched:
    """Servers that were started; they end with `end`, with this object, or with the process.

    Args:
        launch: How.
        model: That is trained; the servers begin with its weights, adapters merged in.
        tokenizer: The model's.
        served_model: The name under which it is served.
        write: Writes the model to a folder; returns options that servers of this folder need.

    Attributes:
        urls: Of the servers, which answer.
        api_key: Theirs; empty where `launch.environment` has an empty VLLM_API_KEY.

    Raises:
        ConfigError: One does not start; the end of its output is quoted.
    """

    def __init__(
        self,
        launch: Launch,
        model: Any,
        tokenizer: Any,
        served_model: str,
        *,
        write: WriteModel = _write_merged,
    ) -> None:
        own = tempfile.TemporaryDirectory(prefix="gymnast-vllm-")
        folder = Path(own.name) / "model"
        needed = write(model, folder)
        tokenizer.save_pretrained(folder)
        logs = Path(launch.log_folder or own.name)
        logs.mkdir(parents=True, exist_ok=True)
        ports = _free_ports(launch.servers)
        self.urls = [f"http://{HOST}:{port}" for port in ports]
        environment = {"VLLM_API_KEY": secrets.token_urlsafe(32)}
        if len(own.name) <= MOST_SOCKET_FOLDER:
            environment["TMPDIR"] = own.name  # for what vLLM leaves behind, sockets among it
        environment |= launch.environment
        self.api_key = environment["VLLM_API_KEY"]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._processes, own)
        for port in ports:
            command = [
                *(*launch.command, "serve", str(folder), "--served-model-name", served_model),
                *("--host", HOST, "--port", str(port), *NEEDED),
                *("--dtype", str(model.dtype).removeprefix("torch.")),
                *needed,
                *launch.options,
            ]
            log = logs / f"{port}.log"
            self._processes.append(_start(own.name, command, environment, log))
        until = time.monotonic() + launch.start_timeout_s
        for process, url, port in zip(self._processes, self.urls, ports, strict=True):
            try:
                _wait(process, url, until, logs / f"{port}.log")
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        """End the servers, and wait until they have ended."""
        self._finalizer()


def _start(
    folder: str, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        try:
            return subprocess.Popen(
                [sys.executable, keeper.__file__, folder, *command],
                stdin=subprocess.PIPE,  # closed when this process ends
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, **environment},
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"launch.command: {command[0]} does not start: {error}") from error


def _wait(process: "subprocess.Popen[bytes]", url: str, until: float, log: Path) -> None:
    """Wait until a server answers.

    Raises:
        ConfigError: It ended, or is too slow.
    """
    while True:
        if process.poll() is not None:
            raise ConfigError(
                f"launch: the vLLM server at {url} ended with status {process.returncode} before "
                f"it answered; the end of {log}:\n{_tail(log)}"
            )
        if time.monotonic() > until:
            raise ConfigError(
                f"launch.start_timeout_s: the vLLM server at {url} does not answer in time; the "
                f"end of {log}:\n{_tail(log)}"
            )
        try:
            with closing(urllib.request.urlopen(f"{url}/health", timeout=5)):
                pass
            assert process.stdin is not None
            process.stdin.write(b"1")  # from now on it is started again
            process.stdin.flush()
            return
        except OSError:
            time.sleep(0.5)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _end(
    run: int, processes: "list[subprocess.Popen[Any]]", own: "tempfile.TemporaryDirectory[str]"
) -> None:
    if os.getpid() != run:
        return  # a fork of the run ends
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
    for process in processes:
        try:
            process.wait(2 * keeper.GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    own.cleanup()


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on now; all of them differ."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
