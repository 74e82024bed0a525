"""The configs of docs/clusters.md can be read by what reads them."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from gymnast.trainers.config.sections import RolloutsSection, run_keys
from pages import ROOT

FOLDER = ROOT / "examples" / "cluster"
PAGE = (ROOT / "docs" / "clusters.md").read_text()
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])


def test_the_page_names_every_config() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(
        re.findall(r"cluster/(\w[\w.]*)\)", PAGE)
    )


def test_the_setting_of_the_page_holds() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    section = RolloutsSection.model_validate(yaml.safe_load(text)["rollouts"])
    assert (section.backend, section.workers, section.cpus) == ("ray", 4, 1.0)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_has_no_error_of_syntax(script: Any) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("config", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_a_config_sets_only_what_there_is(config: Any) -> None:
    named = re.findall(r"\b(\w+(?:\.\w+)+)=", config.read_text())
    agents = {"agent.urls", "agent.weights_folder"}  # settings of a backend
    assert {name for name in named if name not in agents} <= set(run_keys())


def test_kuberay_runs_the_same_ray_and_image_everywhere() -> None:
    job, policy = yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [c for group in groups for c in group["template"]["spec"]["containers"]]
    assert len({container["image"] for container in containers}) == 1
    assert cluster["authOptions"] == {"mode": "token"}
    assert policy["kind"] == "NetworkPolicy" and policy["spec"]["policyTypes"] == ["Ingress"]
    wanted = re.search(r"workers=(\d+) rollouts.cpus=(\d+)", job["spec"]["entrypoint"])
    (players,) = cluster["workerGroupSpecs"]
    cpus = int(players["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert wanted and int(wanted[1]) * int(wanted[2]) <= cpus * players["replicas"]


def test_servers_are_named_as_a_yaml_list() -> None:
    """What `nodes.sbatch` puts together is read as a list of URLs."""
    listed = "[http://node3:8000,http://node4:8001]"
    assert yaml.safe_load(listed) == ["http://node3:8000", "http://node4:8001"]
