"""The example image: built, tried and trained on by its YAML alone."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gymnast.cli import app
from gymnast.trainers import load_rollouts

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.docker
def test_an_image_and_a_yaml_file_are_all_it_takes(docker_image: str, tmp_path: Path) -> None:
    from gymnast.sandboxes.docker.engine import engine_client

    api = engine_client()
    tag = "gymnast-storeroom:test"
    built = api.build(
        path=str(EXAMPLES / "container"), tag=tag, buildargs={"base": docker_image}, decode=True
    )
    said = [line.get("error") for line in built]
    assert not any(said), said
    run = tmp_path / "run"
    arguments = [
        "train",
        str(EXAMPLES / "container.yaml"),
        "model={name: 'tiny:'}",
        f"environment.sandbox.image={tag}",
        "environment.context_length=null",
        "trainer={steps: 1, rows_per_step: 1, learning_rate: 1.0e-3}",
        "algorithm.group_size=2",
        "evaluation={rows: 1, every_steps: 1}",
        f"output_dir={run}",
    ]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    rollouts = load_rollouts(run, step=1)
    assert len(rollouts) == 2
    said = [json.dumps(saved.trajectory.messages) for saved in rollouts]
    assert all("Make sure that there are" in text for text in said)
    api.remove_image(tag, force=True)  # boxes that are kept ready still use it
