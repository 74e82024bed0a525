"""Running code in a container of a Docker engine."""

import os
import uuid
from functools import cache
from typing import Any

import docker.errors
from docker.types import LogConfig, Ulimit

from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.contract.spec import Network, SandboxSpec
from gymnast.sandboxes.docker.engine import (
    ENGINE_ERRORS,
    AttachedStream,
    engine_address,
    engine_client,
    has_all_user_ids,
    may_pass,
)
from gymnast.sandboxes.docker.python_layer import image_with_python, python_command
from gymnast.sandboxes.docker.removal import remove_left, remove_some_time
from gymnast.sandboxes.lifetime.owner import owner_labels
from gymnast.sandboxes.lifetime.users import LIMITS, LOGIN, random_user_id
from gymnast.sandboxes.seccomp.bpf_filter import BOX_CALLS, NETWORK_CALLS
from gymnast.sandboxes.seccomp.docker_profile import profile
from gymnast.sandboxes.worker.file_room import file_room
from gymnast.sandboxes.worker.program import command
from gymnast.sandboxes.worker.sandbox import WorkerSandbox

DEFAULT_IMAGE = "python:3.12-slim"
WORK_FOLDER = "/work"

_OWN_ENV = {"HOME": WORK_FOLDER, "LANG": "C.UTF-8", **LOGIN}
_OWN_PROCESSES = 2  # the worker and the session
_MORE_THREADS = 64  # the engine's own, while it starts a box
_FIRST_USERS_GROUP = "1000"  # many images let only this group into their user's home
_OOM_SCORE = 500  # killed before the rest of the machine, and after what the worker starts
# Replaces the engine's mounts, with which a box could take all PTYs of the machine, or leave
# messages in queues.
_NOTHING = "ro,nosuid,nodev,noexec,mode=755,size=4k,nr_inodes=1"


class DockerSandbox(WorkerSandbox):
    """A container that answers in a millisecond, as its worker is started only once.

    It has no network, no capability, no way to gain privileges, a user that no other box has, a
    read-only root with three writable folders in memory (`/work`, where code runs, `/tmp` and
    /dev/shm; `disk_bytes`), and limits on memory (files in memory count, no swap), processes, CPU,
    open files, wall time and output. It may make the system calls of `bpf_filter.BOX_CALLS`: none
    that makes namespaces, mounts, traces, watches files, loads programs into the kernel, or opens a
    socket that is not local. Not even its own loopback can be used, as the kernel does not count
    TCP's buffers ("runsc" has a kernel of its own, and answers all calls). The worker is process 1
    of the container: nothing in it can kill it. When the host's process ends, however it ends, the
    worker ends too, and the engine removes the container; if code makes the worker hang at that
    moment, the next sweep removes it.

    It does not protect from holes in the kernel, which a container shares with the host (`runtime=`
    "runsc" or "kata" puts another kernel in between); from what /proc and /sys tell of the machine
    (its CPUs, memory and load); from the use of shared caches and the memory bus; or from the image
    itself. The engine must be trusted, and whoever may use its socket is root on its machine. Code
    can break its own box; the verdict of that call is "dead". When its memory is full, the kernel
    kills what code has started before the worker; code can change this if the engine's kernel has
    no Landlock (before 5.19).

    The user has no name in the image's /etc/passwd: USER and LOGNAME are "sandbox", HOME is
    `/work`. It can read what everyone, or the group 1000, may read in the image. There are no
    terminals (PTYs). With `userns-remap`, or without root, an engine has few users, and two boxes
    may have the same one.

    What a spec can open: `network` "endpoint" (TCP and UDP over the box's own loopback, whose
    buffers no limit counts, and one port there that leads to the host) and "full" (the engine's
    default network); `root` "writable" (on the engine's disk, which `disk_bytes` does not limit;
    code can then choose to be killed after the worker, as without Landlock) and "image" (with the
    image's own /tmp and working folder); `user`, "root" among them, without capabilities but those
    that `capabilities` names. `docs/isolation.md` says what each gives away.

    With `python=None` the image needs no Python: a copy of it with the Python that runs Gymnast
    (`python_layer.py`) is made once, some 80 MB on the engine's disk, and used from then on. Its
    `sys.executable` cannot be started again by code in the box.

    Args:
        spec: The image, the runtime and the limits.
        image: Replaces the spec's image.

    Raises:
        SandboxTemporarilyUnavailable: No engine answers now, or it fails.
        SandboxUnavailable: There is no such image, Python or runtime; or a limit is refused.
    """

    def __init__(self, spec: SandboxSpec | None = None, *, image: str | None = None) -> None:
        super().__init__(spec or SandboxSpec())
        if self.spec.packages is not None:
            raise SandboxUnavailable(
                f"packages is {self.spec.packages!r}; a container has the packages of its image: "
                "install them there, and name the image"
            )
        self.image = image or self.spec.image or default_image()
        # Named before it is made: the engine may fail between making it and answering.
        self._container = f"gymnast-{uuid.uuid4().hex}"
        self._api = api = engine_client()
        api.count_boxes(1)
        try:
            self._watch = api.watch()
            self._id = _create(api, self._container, self.image, self.spec)
            params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            # Attached before the start: earlier output would be lost.
            self._attached = AttachedStream(api.attach_socket(self._id, params=params))
            api.start(self._id)
        except ENGINE_ERRORS as error:
            if hasattr(self, "_attached"):
                self._attached.close()
            if not isinstance(error, docker.errors.ImageNotFound):
                remove_some_time(api, self._container)
            api.count_boxes(-1)
            kind = SandboxTemporarilyUnavailable if may_pass(error) else SandboxUnavailable
            raise kind(_why_not(error, self.image, self.spec)) from None
        container, attached = self._container, self._attached
        self._connect(
            attached,
            lambda: _discard(api, container, attached),
            alone=True,
            # It would also close what is made later in the root itself.
            seal_proc=self.spec.root == "read_only",
            forward=True,
        )
        remove_left()

    @property
    def container_id(self) -> str:
        """The engine's id of the container."""
        return self._id

    def engine_lost(self) -> bool:
        """See `Sandbox.engine_lost`."""
        return not self._api.answers() or bool(self._watch.engine_has_gone())

    def _name(self) -> str:
        return f"the container {self._id[:12]} of {self.image}"

    def _start_failure(self) -> str:
        return self._attached.stderr.decode("utf-8", "replace").strip()[-500:]


def default_image() -> str:
    """`$GYMNAST_SANDBOX_IMAGE`, or the official Python image."""
    return os.environ.get("GYMNAST_SANDBOX_IMAGE") or DEFAULT_IMAGE


def _create(api: Any, name: str, image: str, spec: SandboxSpec) -> str:
    all_ids = has_all_user_ids(api)
    of_image = spec.root == "image"
    user_id, group_id = _user(spec, all_ids)
    # With an owner, as the mode is ignored if the image has a folder of that name.
    owner, room = f"uid={user_id},gid={group_id},mode=1777", file_room(spec)
    tmpfs = f"rw,nosuid,nodev,{owner},size={room.size_bytes},nr_inodes={room.inodes}"
    host_config = api.create_host_config(
        auto_remove=True,
        **_network(spec),
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true", f"seccomp={_seccomp_profile(spec.network)}"],
        read_only=spec.root == "read_only",
        cap_add=list(spec.capabilities) or None,
        tmpfs={
            **({} if of_image else {WORK_FOLDER: f"{tmpfs},exec", "/tmp": f"{tmpfs},noexec"}),
            "/dev/shm": f"{tmpfs},noexec",
            "/dev/pts": _NOTHING,
            "/dev/mqueue": _NOTHING,
        },
        mem_limit=spec.memory_bytes,
        memswap_limit=spec.memory_bytes,
        pids_limit=spec.processes + _OWN_PROCESSES,
        nano_cpus=int(spec.cpus * 1e9),
        oom_score_adj=_OOM_SCORE,
        ulimits=_ulimits(spec, all_ids and spec.user is None and not of_image),
        group_add=None if of_image else [_FIRST_USERS_GROUP],
        log_config=LogConfig(type=LogConfig.types.NONE),  # else a log of all answers grows on disk
        runtime=spec.runtime,
    )
    created = api.create_container(
        image if spec.python is not None else image_with_python(api, image),
        name=name,
        entrypoint=command(*(python_command() if spec.python is None else [spec.python])),
        command=[],
        user=None if of_image and spec.user is None else f"{user_id}:{group_id}",
        working_dir=None if of_image else WORK_FOLDER,
        environment={**({} if of_image else _OWN_ENV), **spec.env},
        labels=owner_labels(),
        stdin_open=True,
        healthcheck={"test": ["NONE"]},
        use_config_proxy=False,  # the user's own settings, which may hold passwords
        host_config=host_config,
    )
    return str(created["Id"])


def _user(spec: SandboxSpec, all_ids: bool) -> tuple[int, int]:
    """The numbers of the user and of its group."""
    if spec.user is None:
        user_id = random_user_id(all_ids=all_ids)
        return user_id, user_id
    user, _, group = spec.user.replace("root", "0").partition(":")
    return int(user), int(group or user)


def _network(spec: SandboxSpec) -> dict[str, Any]:
    """The options for the network. An endpoint is reached over the worker's connection."""
    if spec.network == "full":
        return {"network_mode": "bridge"}
    # The names of servers: else the box sees the host's own servers and domains.
    return {"network_mode": "none", "dns": ["127.0.0.1"], "dns_search": ["."]}


def _ulimits(spec: SandboxSpec, all_ids: bool) -> list[Ulimit]:
    largest = spec.disk_bytes if spec.root == "image" else file_room(spec).largest_file_bytes
    limits = {"RLIMIT_FSIZE": largest, "RLIMIT_NOFILE": 1024, **LIMITS}
    if all_ids:  # else boxes with the same user would share the count
        limits["RLIMIT_NPROC"] = spec.processes + _OWN_PROCESSES + _MORE_THREADS
    names = {name: name.removeprefix("RLIMIT_").lower() for name in limits}
    return [Ulimit(name=names[name], soft=most, hard=most) for name, most in limits.items()]


@cache
def _seccomp_profile(network: Network) -> str:
    return profile({**BOX_CALLS, **NETWORK_CALLS[network]})


def _why_not(error: Exception, image: str, spec: SandboxSpec) -> str:
    where = f"the Docker engine at {engine_address()}"
    if isinstance(error, docker.errors.ImageNotFound):
        return (
            f"{where} has no image {image!r}: run `docker pull {image}`, or name another with "
            "image= or GYMNAST_SANDBOX_IMAGE"
        )
    problem = getattr(error, "explanation", None) or str(error)
    runtime = f", runtime {spec.runtime!r}" if spec.runtime else ""
    no_python = f'exec: "{spec.python}"' in problem.replace("\\", "")  # some runtimes escape it
    needed = f". It must have Python 3.8 or newer as {spec.python!r}; python=None needs none"
    hint = needed if no_python else ""
    return f"{where} cannot start a box of image {image!r}{runtime}: {problem}{hint}"


def _discard(api: Any, container: str, attached: AttachedStream) -> None:
    attached.shutdown()  # wakes a thread that waits for an answer; the worker ends too
    remove_some_time(api, container)
    attached.close()
    api.count_boxes(-1)
