"""What reads the blocks of README and docs, where it is neither of the tests that read every page.

`test_yaml_blocks.py` reads the YAML of every page, `test_commands.py` the commands (`sh`) and
`test_python_blocks.py` the Python of the pages that it says. All others are here.
"""

READERS: dict[tuple[str, str], tuple[int, str]] = {
    ("extending.md", "yaml"): (2, "tests/docs/test_extending_page.py"),
}
