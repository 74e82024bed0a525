"""Which tests read the blocks of README and docs: run Python and commands, load configurations.

Those of EVERY_PAGE take every block of their language, wherever it stands. Any other block is
counted in READERS, with the tests that read all of its language on its page together; these take a
page's language from those of EVERY_PAGE, too.
"""

EVERY_PAGE = {"sh": "tests/docs/test_commands.py", "yaml": "tests/docs/test_yaml_blocks.py"}
OUTPUT = ("", "text", "console", "{toctree}")  # what is printed, and what the site is made of

_AGENTS = ("tests/trainers/test_other_agents.py", "tests/docs/test_agents_page.py")
_ENVIRONMENTS = "tests/envs/environment/test_environments_page.py"
_FILES = "tests/docs/test_shown_files.py"  # they are the repository's, and run there
_PYTHON = "tests/docs/test_python_blocks.py"
_SANDBOXES = "tests/envs/boxes/test_sandboxes_page.py"
_TUTORIAL = "tests/docs/test_tutorial_page.py"

READERS: dict[tuple[str, str], tuple[int, *tuple[str, ...]]] = {
    ("README.md", "python"): (1, _FILES),
    ("agents.md", "python"): (3, *_AGENTS, _PYTHON),
    ("algorithms.md", "python"): (4, _PYTHON),
    ("cheating.md", "python"): (2, "tests/envs/boxes/test_cheating_page.py"),
    ("clusters.md", "python"): (1, _PYTHON),
    ("coming_from.md", "python"): (8, "tests/docs/test_coming_from_page.py"),
    ("demonstrations.md", "python"): (3, "tests/docs/test_demonstrations_page.py"),
    ("distillation.md", "python"): (1, _PYTHON),
    ("environments.md", "python"): (14, _ENVIRONMENTS),
    ("evaluation.md", "bash"): (2, "tests/docs/test_evaluation_page.py"),
    ("extending.md", "python"): (3, "tests/docs/test_extending_page.py"),
    ("extending.md", "toml"): (1, "tests/docs/test_extending_page.py"),
    ("extending.md", "yaml"): (2, "tests/docs/test_extending_page.py"),
    ("first_run.md", "bash"): (1, "tests/docs/test_first_run_page.py"),
    ("first_run.md", "python"): (1, _FILES),
    ("harbor.md", "python"): (1, _PYTHON),
    ("inside.md", "python"): (1, "tests/docs/test_inside_page.py"),
    ("isolation.md", "json"): (1, "tests/sandboxes/test_isolation_page.py"),
    ("isolation.md", "python"): (1, _PYTHON),
    ("metrics.md", "python"): (1, _PYTHON),
    ("mixtures.md", "python"): (2, "tests/envs/test_mixtures_page.py"),
    ("optimization.md", "python"): (1, _PYTHON),
    ("programs.md", "python"): (1, _FILES),
    ("recipes.md", "bash"): (1, "tests/docs/test_recipes_page.py"),
    ("recipes.md", "python"): (2, "tests/docs/test_recipes_page.py"),
    ("rollouts.md", "python"): (2, _PYTHON),
    ("rubrics.md", "python"): (2, "tests/docs/test_rubrics_page.py"),
    ("sampling.md", "python"): (1, _PYTHON),
    ("sandboxes.md", "json"): (2, _SANDBOXES),
    ("sandboxes.md", "python"): (2, _SANDBOXES),
    ("saved_episodes.md", "python"): (4, "tests/docs/test_saved_episodes_page.py", _PYTHON),
    ("sql.md", "json"): (1, _PYTHON),
    ("tutorial.md", "diff"): (2, _TUTORIAL),
    ("tutorial.md", "json"): (1, _TUTORIAL),
    ("tutorial.md", "python"): (5, _FILES, _TUTORIAL),
    ("vllm_servers.md", "nginx"): (1, "tests/agents/vllm/test_reach.py"),
}
