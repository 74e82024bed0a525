"""SQL: questions about a SQLite database, answered by queries."""
