"""The limits of a box and the results that come back from it, as plain data.

Each backend's docstring says how it enforces the limits.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from gymnast.errors import UsageError
from gymnast.sandboxes.contract.packages import check_packages

Verdict = Literal["ok", "nonzero", "timeout", "oom", "output_limit", "dead"]

Network = Literal["none", "endpoint", "full"]
Root = Literal["read_only", "writable", "image"]

# What `capabilities` may name: what package managers and services need as root of their container,
# and what gives no power over anything outside of it.
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
)

MIB = 1 << 20


@dataclass(frozen=True)
class SandboxSpec:
    """The image and the limits of a box. Two boxes of equal specs are interchangeable.

    Attributes:
        image: The image of a container backend; it needs Python 3.8 or newer (but see `python`),
            nothing else. None: `$GYMNAST_SANDBOX_IMAGE`, else "python:3.12-slim". Other backends
            run the Python that runs Gymnast, without the packages of its environment.
        runtime: The engine's runtime: "runsc", "kata", ...; None: the engine's default.
        python: The command that starts Python in an image. None: the image needs no Python, as a
            copy of it is used with the Python that runs Gymnast beside its files.
        packages: A folder of packages that code may import and read, as made by
            `pip install --target FOLDER NAME`. Without it, boxes on the host's kernel have Python
            and its standard library alone. Containers refuse it: their packages are the image's.
        memory_bytes: Memory of all processes together, files in memory included.
        processes: Processes and threads at once.
        cpus: CPU time per second of wall time, in cores.
        disk_bytes: Size of each writable folder: the working folder, /tmp and /dev/shm. They are
            in memory, so each gets at most a sixth of what is left of `memory_bytes` after 16 MiB
            and 8 times `max_output_bytes`; they have as many inodes as pages, and 256 more.
        timeout_s: Wall time of one call, in seconds, unless the call sets its own.
        max_output_bytes: How much of stdout, and how much of stderr, one call keeps.
        start_timeout_s: Wall time until a new box must answer, in seconds.
        env: Environment variables of everything that runs in the box.
        network: "none"; "endpoint": the one address of the host that `endpoint` names; "full":
            whatever the machine that runs the box can reach. See `docs/isolation.md` for what each
            of these and of the next two gives away. A backend refuses what it cannot do.
        endpoint: With network "endpoint": "127.0.0.1:PORT", from port 1024 on. Code in the box
            finds it at the same address.
        root: "read_only"; "writable": the image's files can be changed, as far as its user may;
            "image": likewise, and nothing of the image is covered or replaced: its /tmp, its
            working folder, in which code runs, and its variables are those of the box.
            `disk_bytes` is then the size of each single file.
        user: None: a user of the box's own, or with root "image" that of the image. "root", or
            numbers as in "1000" or "1000:1000".
        capabilities: Capabilities of a user "root", of those in `CAPABILITIES`.

    Raises:
        UsageError: A value breaks its rule.
    """

    image: str | None = None
    runtime: str | None = None
    python: str | None = "python3"
    packages: str | None = None
    memory_bytes: int = 512 * MIB
    processes: int = 64
    cpus: float = 1.0
    disk_bytes: int = 64 * MIB
    timeout_s: float = 30.0
    max_output_bytes: int = MIB
    start_timeout_s: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    network: Network = "none"
    endpoint: str | None = None
    root: Root = "read_only"
    user: str | None = None
    capabilities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in _LEAST_BYTES.items():
            check_whole(name, getattr(self, name), least)
        check_whole("processes", self.processes, 1)
        check_seconds("timeout_s", self.timeout_s)
        check_seconds("start_timeout_s", self.start_timeout_s)
        if not _is_number(self.cpus) or not 0.01 <= self.cpus < math.inf:
            raise UsageError(f"cpus is {self.cpus!r}; it must be a number of cores from 0.01 on")
        for name in ("image", "runtime", "python", "packages", "endpoint", "user"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text.strip()):
                raise UsageError(f"{name} is {text!r}; it must be a text with something in it")
        if self.packages is not None:
            object.__setattr__(self, "packages", check_packages(self.packages))
        object.__setattr__(self, "env", dict(check_env_variables(self.env)))
        for name, kinds in (("network", get_args(Network)), ("root", get_args(Root))):
            if getattr(self, name) not in kinds:
                known = ", ".join(map(repr, kinds))
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be one of {known}")
        self._check_endpoint()
        if self.user is not None and not re.fullmatch(r"root|\d{1,9}(:\d{1,9})?", self.user):
            raise UsageError(
                f"user is {self.user!r}; it must be 'root' or numbers as in '1000' or '1000:1000'"
            )

        self._check_capabilities()

    def _check_capabilities(self) -> None:
        named = self.capabilities
        if isinstance(named, str) or not all(name in CAPABILITIES for name in named):
            raise UsageError(
                f"capabilities is {named!r}; it must be a list of names of these: "
                f"{', '.join(CAPABILITIES)}"
            )
        object.__setattr__(self, "capabilities", tuple(sorted(set(named))))

    def _check_endpoint(self) -> None:
        if (self.network == "endpoint") is not (self.endpoint is not None):
            raise UsageError(
                f"network is {self.network!r} and endpoint is {self.endpoint!r}; the network "
                "'endpoint' takes an endpoint, '127.0.0.1:8000' say, and no other network does"
            )
        port = re.fullmatch(r"127\.0\.0\.1:(\d{4,5})", self.endpoint or "127.0.0.1:8000")
        if port is None or not 1024 <= int(port[1]) < 1 << 16:
            raise UsageError(
                f"endpoint is {self.endpoint!r}; it must be '127.0.0.1:PORT', with a port from "
                "1024 to 65535: other addresses need a forwarder there"
            )

    @property
    def endpoint_port(self) -> int | None:
        """The port of `endpoint`."""
        return None if self.endpoint is None else int(self.endpoint.partition(":")[2])

    @classmethod
    def from_limits(cls, limits: Mapping[str, Any]) -> "SandboxSpec":
        """Make a spec of keyword arguments.

        Raises:
            UsageError: A name is not a limit, or a value breaks its rule.
        """
        names = [known.name for known in fields(cls)]
        for name in limits:
            if name not in names:
                raise UsageError(f"a sandbox has no limit {name!r}; it has {', '.join(names)}")
        return cls(**limits)


@dataclass(frozen=True)
class ExecResult:
    """What a command or a piece of Python did.

    Attributes:
        exit_code: Of the command; 128 + N where signal N killed it (137: SIGKILL, which is also
            how a timeout ends it). Of Python code: 0, 1 after an exception, or the code that it
            exited with. -1: not known, as the box is gone.
        stdout: Text; bytes that are not UTF-8 become U+FFFD. If it was longer than
            `max_output_bytes`: its head and its tail, with a line between them that says how many
            bytes are missing.
        stderr: Likewise.
        verdict: "ok": exit code 0. "nonzero": another one. "timeout": out of time, and killed.
            "oom": out of memory, and killed. "output_limit": more output than
            `max_output_bytes`; the command was killed if it did not end soon after. "dead": the
            box broke during the call. If several hold, the first of dead, timeout, oom,
            output_limit.
        truncated: Whether stdout or stderr was cut.
    """

    exit_code: int
    stdout: str
    stderr: str
    verdict: Verdict
    truncated: bool = False


def check_whole(name: str, value: Any, least: int) -> int:
    """Return the value if it is a whole number of at least `least`.

    Raises:
        UsageError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} is {value!r}; it must be a whole number from {least} on")
    return value


def check_seconds(name: str, value: Any) -> float:
    """Return the value if it is a finite time above zero, in seconds.

    Raises:
        UsageError: It is not.
    """
    if not _is_number(value) or not 0 < value <= MAX_TIMEOUT_S:
        raise UsageError(
            f"{name} is {value!r}; it must be a number of seconds above 0, at most {MAX_TIMEOUT_S}"
        )
    return float(value)


def check_env_variables(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables if the system accepts them.

    Raises:
        UsageError: It does not.
    """
    for name, value in env.items():
        if not isinstance(name, str) or not re.fullmatch(r"[^=\0]+", name):
            raise UsageError(f"env has the name {name!r}; it must be a text without '=' and NUL")
        if not isinstance(value, str) or "\0" in value:
            raise UsageError(f"env[{name!r}] is {value!r}; it must be a text without NUL")
    return env


MAX_TIMEOUT_S = 7 * 24 * 3600
_LEAST_BYTES = {"memory_bytes": 32 * MIB, "disk_bytes": 1 << 16, "max_output_bytes": 1}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
