"""What lies in a ledger, read past the cache: whose rows are whose, and which are nobody's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["TABLES", "Read", "orphans", "reading", "rows"]

#: Gives all rows of a query.
Read = Callable[[str], list[tuple[Any, ...]]]
#: What readers leave in these tables they have to take away again.
TABLES = ("holders", "leases", "flights", "plans", "orders", "windows")


def reading(ledger: Path) -> Read:
    """Queries on the ledger of a directory, each on a connection of its own."""

    def read(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(ledger, timeout=30)) as connection:
            return connection.execute(query).fetchall()

    return read


def rows(read: Read) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table that readers write to, where there are any."""
    found = {table: read(f"SELECT * FROM {table}") for table in TABLES}
    return {table: lines for table, lines in found.items() if lines}


def orphans(read: Read) -> dict[str, list[tuple[Any, ...]]]:
    """Rows whose holder, plan or chunk is not there; a buried holder's file that could not be removed is no orphan."""
    queries = {
        "leases": "SELECT * FROM leases WHERE holder NOT IN (SELECT id FROM holders)"
        " OR chunk NOT IN (SELECT id FROM chunks)",
        "flights": "SELECT * FROM flights WHERE holder NOT IN (SELECT id FROM holders UNION SELECT 0)"
        " OR lost = 0 AND id NOT IN (SELECT flight FROM chunks WHERE flight IS NOT NULL)",
        "plans": "SELECT * FROM plans WHERE holder NOT IN (SELECT id FROM holders)"
        " OR id NOT IN (SELECT plan FROM orders)",
        "orders": "SELECT plan, version, turn FROM orders WHERE plan NOT IN (SELECT id FROM plans)",
        "windows": "SELECT * FROM windows WHERE holder NOT IN (SELECT id FROM holders)",
        "chunks": "SELECT id, name FROM chunks WHERE ready = 0 AND flight IS NULL"
        " AND id NOT IN (SELECT chunk FROM leases)",
    }
    found = {table: read(query) for table, query in queries.items()}
    return {table: lines for table, lines in found.items() if lines}
