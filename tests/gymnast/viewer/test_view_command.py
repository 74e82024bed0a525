"""`gymnast view` on the command line."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from command_fixtures import CommandLine
from viewer_fixtures import plain_run


def test_it_serves_runs_until_it_is_interrupted(tmp_path: Path, tokenizer: Any) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    command = [sys.executable, "-m", "gymnast", "view", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewing:
        assert viewing.stdout is not None
        url = viewing.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S{43}", url)
        jar = urllib.request.HTTPCookieProcessor(CookieJar())
        with urllib.request.build_opener(jar).open(url, timeout=30) as page:
            assert b'<div id="page">' in page.read()
        assert viewing.stdout.readline() == "Ctrl-C ends it.\n"
        assert viewing.stdout.readline().startswith("for another browser: http://127.0.0.1:")
        viewing.send_signal(signal.SIGINT)
        assert viewing.wait(30) in (0, 130)


def test_it_writes_one_file(gymnast: CommandLine, tmp_path: Path, tokenizer: Any) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    ran = gymnast("view", str(folder), "--html", "shop.html")
    assert ran.code == 0, ran.errors
    assert re.fullmatch(r"shop\.html: 8 episodes, 0\.\d MB\n", ran.output)
    assert Path("shop.html").read_text().startswith("<!doctype html>")


def test_a_file_replaces_pages_alone(gymnast: CommandLine, tmp_path: Path, tokenizer: Any) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    config = (folder / "config.yaml").read_text()
    ran = gymnast("view", str(folder), "--html", f"{folder}/config.yaml")
    assert ran.code == 2 and "is no page of gymnast view, so it is not replaced" in ran.errors
    assert (folder / "config.yaml").read_text() == config
    for _ in range(2):
        assert gymnast("view", str(folder), "--html", "shop.html").code == 0


def test_a_file_holds_the_episodes_that_are_chosen(
    gymnast: CommandLine, tmp_path: Path, tokenizer: Any
) -> None:
    folder = str(plain_run(tmp_path / "shop", tokenizer))
    ran = gymnast("view", folder, "--html", "some.html", "--step", "2", "--min-reward", "0.5")
    assert ran.code == 0, ran.errors
    assert re.fullmatch(r"some\.html: 2 episodes, 0\.\d MB\n", ran.output)


def test_a_file_without_episodes_says_which_there_are(
    gymnast: CommandLine, tmp_path: Path, tokenizer: Any
) -> None:
    folder = str(plain_run(tmp_path / "shop", tokenizer))
    ran = gymnast("view", folder, "--html", "none.html", "--tool", "prize")
    assert ran.code == 0, ran.errors
    size, *said = ran.output.splitlines()
    assert size.startswith("none.html: 0 episodes, ")
    assert said == [
        "shop: none of the 8 episodes matches",
        "shop: --tool prize: is in no episode. Did you mean 'price'? The called tools: price",
    ]


def test_episodes_are_not_chosen_for_a_page_that_is_served(
    gymnast: CommandLine, tmp_path: Path, tokenizer: Any
) -> None:
    folder = str(plain_run(tmp_path / "shop", tokenizer))
    served = gymnast("view", folder, "--step", "2")
    assert served.code == 2 and "add --html FILE" in served.errors
    unread = gymnast("view", folder, "--html", "some.html", "--where", "a >")
    assert unread.code == 2 and unread.errors.startswith("error: --where: must be a jmespath")
    unfit = gymnast("view", folder, "--html", "some.html", "--where", "abs(prompt) > `1`")
    assert unfit.code == 2 and "--where: 'abs(prompt) > `1`' cannot be applied" in unfit.errors
    untagged = gymnast("view", folder, "--html", "some.html", "--tag", "a")
    assert untagged.code == 2 and "--tag: must be KEY=VALUE" in untagged.errors


def test_wrong_inputs_end_in_a_line(gymnast: CommandLine, tmp_path: Path, tokenizer: Any) -> None:
    folder = str(plain_run(tmp_path / "shop", tokenizer))
    none = gymnast("view", "none")
    assert none.code == 2 and none.errors.startswith("error: ")
    assert "none: there is no such folder; name the folder of a run" in none.errors
    no_run = gymnast("view", ".")
    assert no_run.code == 2 and "has neither metrics.jsonl nor rollouts" in no_run.errors
    small = gymnast("view", folder, "--html", "shop.html", "--limit-mb", "0.01")
    assert small.code == 2 and "set a higher limit, or name fewer runs" in small.errors
    nowhere = gymnast("view", folder, "--html", "none/shop.html")
    assert nowhere.code == 2 and "--html 'none/shop.html': cannot be written" in nowhere.errors
    a_file = gymnast("view", f"{folder}/config.yaml")
    assert a_file.code == 2 and f"name the folder of a run. Did you mean {folder}?" in a_file.errors
    served = gymnast("view", folder, "--html", "shop.html", "--port", "8000")
    assert served.code == 2 and "leave out --port and --browser" in served.errors
    for limit in ("nan", "inf", "0", "-1"):
        ran = gymnast("view", folder, "--html", "shop.html", "--limit-mb", limit)
        assert ran.code == 2 and f"--limit-mb: must be a number above 0, got {limit}" in ran.errors
    for port in ("99999", "-1"):
        ran = gymnast("view", folder, "--port", port)
        assert ran.code == 2 and f"--port: must be between 0 and 65535, got {port}" in ran.errors
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = gymnast("view", folder, "--port", port)
    assert ran.code == 2 and f"--port {port}: cannot be listened on" in ran.errors
