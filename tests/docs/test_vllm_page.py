"""docs/vllm.md names every setting, and its example is the main job."""

import inspect
import re
from dataclasses import fields

import yaml

from gymnast.agents.vllm.launch import Launch
from gymnast.agents.vllm_trained import trained_vllm_agent
from gymnast.trainers import load_config
from gymnast.trainers.config.sections import AlgorithmSection
from pages import ROOT

PAGE = (ROOT / "docs/vllm.md").read_text()


def keys(heading: str) -> set[str]:
    """The names in the first column of the table that a heading begins."""
    table = PAGE.partition(f"\n| {heading} | default | meaning |\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_the_tables_have_every_setting() -> None:
    assert keys("key of `launch`") == {field.name for field in fields(Launch)}
    assert keys("key") == set(list(inspect.signature(trained_vllm_agent).parameters)[2:])


def test_the_yaml_is_a_section_of_a_run() -> None:
    shown = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    agents = [each["agent"]["backend"] for each in shown if "agent" in each]
    assert agents == ["vllm"] * (len(shown) - 1)
    (taught,) = (each["algorithm"] for each in shown if "algorithm" in each)
    teacher = AlgorithmSection(**taught).make().teacher
    assert teacher is not None and teacher.is_served


def test_the_example_is_the_main_job_but_for_its_agent() -> None:
    main, ours = (
        load_config(ROOT / f"examples/{name}.yaml").model_dump(exclude={"agent", "output_dir"})
        for name in ("arithmetic", "arithmetic_vllm")
    )
    assert ours == main
