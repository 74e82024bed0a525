"""The cluster that workers run on: one that is there, or one on this machine that ends with us.

What we start listens on 127.0.0.1 alone, asks for a token that only this process and its children
know, has no dashboard and reports no usage.
"""

import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from gymnast.errors import ConfigError, first_line
from gymnast.visible import visible_logger

# What a cluster of our own keeps of messages that are too large for a call, in bytes.
OBJECT_STORE_BYTES = 256 * 2**20
# Every process of a cluster of our own has this in its environment.
MARK = "GYMNAST_RAY_CLUSTER"
logger = visible_logger(__name__)


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "rollouts.backend: ray: Ray is not installed; run `pip install 'gymnast-rl[ray]'`, or "
            "set rollouts.backend to local"
        ) from error
    return ray


class Cluster:
    """A connection to a Ray cluster.

    Args:
        address: Of the cluster's head, "host:port"; None: `RAY_ADDRESS`, or a cluster of our own.
        cpus: How many CPUs a cluster of our own says it has.
    """

    def __init__(self, address: str | None, cpus: float) -> None:
        self._address, self._cpus = address, cpus
        self._stack = ExitStack()

    def open(self) -> None:
        """Connect, and start the cluster if it is our own.

        Raises:
            ConfigError: Ray is not installed, or there is no cluster at the address, or it asks for
                a token.
        """
        ray = import_ray()
        if ray.is_initialized():  # the program's own connection, which stays
            return
        address = self._address or os.environ.get("RAY_ADDRESS")
        with ExitStack() as stack:
            if address is None or address == "local":
                self._start(ray, stack)
            else:
                _join(ray, address)
            stack.callback(_quietly, ray.shutdown)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Disconnect, and end the cluster if it is our own."""
        self._stack.close()

    def _start(self, ray: Any, stack: ExitStack) -> None:
        """Start a cluster on this machine."""
        folder = tempfile.mkdtemp(prefix="gymnast-ray-", dir=_short_folder())
        mark = secrets.token_hex(16)
        stack.enter_context(_caretaker(folder, mark))
        own = {
            MARK: mark,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every address is 127.0.0.1
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        stack.callback(_read_authentication)  # once the environment is as it was
        stack.enter_context(_environment(own))
        stack.enter_context(_constant("ENABLE_RAY_CLUSTER", False))
        _read_authentication()
        with _signals_kept():
            ray.init(
                address="local",
                num_cpus=math.ceil(self._cpus),
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=folder,
            )


def _join(ray: Any, address: str) -> None:
    """Connect to a cluster that is there.

    Raises:
        ConfigError: There is none, or it wants a token.
    """
    _check_answers(address)
    try:
        with _signals_kept():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:
        raise ConfigError(
            f"rollouts.address: the Ray cluster at {address} does not let this process in "
            f"({first_line(error)}). If it asks for a token, set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as on its nodes; else check that it is a Ray "
            f"head, and of this version, {ray.__version__}"
        ) from error


def _check_answers(address: str) -> None:
    """Check, sooner than Ray does, that something answers at an address."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if address.startswith("ray://") or not (colon and port.isdigit()):
        raise ConfigError(
            f"rollouts.address: must be host:port of the cluster's head, got {address!r:.200}; the "
            "driver runs on a machine of the cluster, since Ray Client (ray://) is not supported"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except OSError as error:
        raise ConfigError(
            f"rollouts.address: nothing answers at {address} ({error.strerror or error}); start a "
            "head with `ray start --head`, or leave the address out (and RAY_ADDRESS unset) for a "
            "cluster on this machine"
        ) from error


def _short_folder() -> str:
    """A folder with a short path: a socket's has at most 107 characters."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= 24 or not os.path.isdir("/tmp") else "/tmp"


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, which children inherit, and then set them back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _constant(name: str, value: Any) -> Iterator[None]:
    """Set a constant that Ray read from the environment when it was imported."""
    from ray._private import ray_constants

    before = getattr(ray_constants, name)
    setattr(ray_constants, name, value)
    try:
        yield
    finally:
        setattr(ray_constants, name, before)


def _read_authentication() -> None:
    """Have Ray read from the environment whether there is a token, and which."""
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the program's handler of SIGTERM, in whose place Ray puts its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _caretaker(folder: str, mark: str) -> Iterator[None]:
    """A process that ends a cluster and removes its folder, also if this process is killed."""
    program = os.path.join(os.path.dirname(__file__), "caretaker.py")
    process = subprocess.Popen(
        [sys.executable, "-I", program, folder, f"{MARK}={mark}"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


def _quietly(function: Callable[[], Any]) -> None:
    """Call a function that has nothing to tell about what has ended already."""
    try:
        function()
    except Exception:
        logger.warning("the Ray cluster did not end as it should", exc_info=True)
