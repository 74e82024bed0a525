"""What a task.toml says: limits, images and variables, and which fields stand in the way."""

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.builtin.harbor.task_file import TaskSettings, read_settings, resolved


def test_what_is_not_said_has_the_defaults_of_the_format() -> None:
    assert read_settings({}) == (TaskSettings(), [])
    assert TaskSettings().verifier_timeout_s == TaskSettings().build_timeout_s == 600.0
    assert TaskSettings().network


def test_every_field_that_is_read() -> None:
    document = {
        "schema_version": "1.4",
        "task": {"name": "org/name"},
        "metadata": {"anything": [1, {"deep": True}]},
        "artifacts": ["/app/out"],
        "environment": {
            "docker_image": "org/image:tag",
            "build_timeout_sec": 60,
            "cpus": 2,
            "memory_mb": 512,
            "storage_mb": 1024,
            "network_mode": "no-network",
            "env": {"A": "1", "B": "${NOT_SET_ANYWHERE:-two}"},
            "workdir": "/srv",
            "os": "Linux",
            "gpus": 0,
            "mcp_servers": [],
        },
        "verifier": {"timeout_sec": 5, "env": {"C": "3"}, "environment_mode": "shared"},
        "agent": {"timeout_sec": 7.5},
        "solution": {"env": {"D": "4"}},
    }
    settings, problems = read_settings(document)
    assert problems == []
    assert settings == TaskSettings(
        image="org/image:tag",
        build_timeout_s=60,
        cpus=2,
        memory_mb=512,
        storage_mb=1024,
        network=False,
        env={"A": "1", "B": "${NOT_SET_ANYWHERE:-two}"},
        workdir="/srv",
        agent_timeout_s=7.5,
        verifier_timeout_s=5,
        verifier_env={"C": "3"},
        solution_env={"D": "4"},
    )
    assert resolved(settings.env) == {"A": "1", "B": "two"}


@pytest.mark.parametrize(
    ("said", "mib"), [("2G", 2048), ("512M", 512), ("1.5g", 1536), (None, None)]
)
def test_sizes_of_older_tasks(said: str | None, mib: int | None) -> None:
    table = {} if said is None else {"memory": said, "storage": said}
    settings, problems = read_settings({"environment": table})
    assert (settings.memory_mb, settings.storage_mb, problems) == (mib, mib, [])


@pytest.mark.parametrize(
    ("table", "network"),
    [
        ({}, True),
        ({"allow_internet": True}, True),
        ({"allow_internet": False}, False),
        ({"network_mode": "public", "allow_internet": False}, True),
        ({"network_mode": "no-network"}, False),
    ],
)
def test_the_network_under_both_of_its_names(table: dict[str, Any], network: bool) -> None:
    settings, problems = read_settings({"environment": table})
    assert (settings.network, problems) == (network, [])


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"steps": [{"name": "one"}]}, "steps is .* several steps"),
        ({"environment": {"gpus": 1}}, "environment.gpus is 1, and a box has no GPU"),
        ({"environment": {"tpu": {"type": "v6e"}}}, "no TPU"),
        ({"environment": {"mcp_servers": [{"name": "a"}]}}, "no MCP server"),
        ({"environment": {"healthcheck": {"command": "true"}}}, "nothing that an image starts"),
        ({"environment": {"os": "windows"}}, "boxes run Linux"),
        ({"environment": {"network_mode": "allowlist"}}, "all hosts or none"),
        ({"environment": {"skills_dir": "/skills"}}, "no skills"),
        ({"environment": {"memory_mb": -1}}, "environment.memory_mb is -1, .* 1 or more"),
        ({"environment": {"memory": "much"}}, 'environment.memory is .much., .* "2G"'),
        ({"environment": {"docker_image": ""}}, "a text with something in it"),
        ({"environment": {"env": {"A": 1}}}, "must map names of variables to texts"),
        ({"environment": {"env": {"A": "${NOT_SET_ANYWHERE}"}}}, "NOT_SET_ANYWHERE.* not set here"),
        ({"environment": {"tpyo": 1}}, "environment.tpyo is 1, and nothing is known"),
        ({"verifier": {"environment": {"cpus": 1}}}, "another container"),
        ({"verifier": {"environment_mode": "separate"}}, "another container"),
        ({"verifier": {"timeout_sec": "long"}}, "a number above 0"),
        ({"verifier": {"user": "root"}}, "differ, and all runs as one user"),
        ({"agent": {"user": "ada"}, "verifier": {"user": "ada"}}, "must be root or a number"),
        ({"agent": {"timeout_sec": math.inf}}, "a number above 0"),
        ({"agent": 3}, "agent is 3, and nothing is known"),
        ({"limits": {}}, "limits is {}, and nothing is known"),
    ],
)
def test_what_cannot_be_honoured_is_a_problem_and_can_be_ignored(
    document: dict[str, Any], problem: str
) -> None:
    [said] = read_settings(document)[1]
    assert re.search(problem, said), said
    names = {
        f"{name}.{below}" if isinstance(value, dict) and value else name
        for name, value in document.items()
        for below in (value if isinstance(value, dict) and value else [""])
    }
    assert read_settings(document, ignore=names) == (TaskSettings(), [])


def test_one_user_for_all() -> None:
    document = {"agent": {"user": 1000}, "verifier": {"user": 1000}}
    assert read_settings(document)[0].user == "1000"


TABLES = st.dictionaries(
    st.sampled_from(["environment", "verifier", "agent", "solution", "steps", "other", "task"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda below: (
            st.lists(below, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "timeout_sec",
                        "cpus",
                        "memory_mb",
                        "memory",
                        "env",
                        "user",
                        "network_mode",
                        "gpus",
                        "workdir",
                        "docker_image",
                        "allow_internet",
                        "allowed_hosts",
                        "os",
                        "other",
                    ]
                ),
                below,
                max_size=4,
            )
        ),
        max_leaves=8,
    ),
)


@given(TABLES)
def test_any_document_is_read_or_says_what_is_wrong(document: dict[str, Any]) -> None:
    settings, problems = read_settings(document)
    assert all(isinstance(problem, str) and problem for problem in problems)
    for number in (settings.cpus, settings.agent_timeout_s, settings.verifier_timeout_s):
        assert number is None or 0 < number < math.inf
    assert settings.memory_mb is None or settings.memory_mb >= 1
    resolved(settings.env)
