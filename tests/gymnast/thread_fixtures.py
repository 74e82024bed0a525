"""An environment whose objects belong to the thread that made them."""

import sqlite3
import time
from typing import Any

from gymnast.envs import Environment, tool


class Database(Environment):
    """Objects such as sqlite3 connections may only be used by the thread that made them."""

    def setup(self, row: Any) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table notes (text)")

    @tool
    def note(self, text: str) -> str:
        """Write a note."""
        self.connection.execute("insert into notes values (?)", (text,))
        time.sleep(0.01)  # so that the calls of several episodes overlap
        return "noted"

    def reward(self, episode: Any) -> float:
        found: tuple[int] = self.connection.execute("select count(*) from notes").fetchone()
        return float(found[0])

    def cleanup(self) -> None:
        self.connection.close()
