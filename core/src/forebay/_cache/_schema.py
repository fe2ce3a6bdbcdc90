"""The ledger's tables. Triggers keep ``account.used`` in step with the rows, so the account cannot drift."""

from __future__ import annotations

__all__ = ["SCHEMA", "VERSION"]

VERSION = 1

# chunks.ready with bytes > 0 stands for a file; flights.reserved for a temporary one. chunks.flight is the flight that
# may publish; other flights of the chunk are lost ones whose owner has not noticed yet. leases hold a chunk that is
# ready, being fetched or wanted; a row lives while one of the three is true. chunks.run is the run in which the chunk
# was last verified or published. Ids of holders and flights are random: they outlive a ledger that is rebuilt, and must
# not name somebody else in the new one.
SCHEMA = (
    """CREATE TABLE account (
        id INTEGER PRIMARY KEY CHECK (id = 1), used INTEGER NOT NULL, stray INTEGER NOT NULL, budget INTEGER,
        run INTEGER NOT NULL, boot TEXT NOT NULL, ticket INTEGER NOT NULL)""",
    "INSERT INTO account VALUES (1, 0, 0, NULL, 0, '', 0)",
    """CREATE TABLE holders (
        id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, pid INTEGER NOT NULL, host TEXT NOT NULL,
        budget INTEGER NOT NULL, since REAL NOT NULL)""",
    """CREATE TABLE chunks (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, url TEXT NOT NULL, ready INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0, digest TEXT, etag TEXT, run INTEGER NOT NULL DEFAULT -1,
        used REAL NOT NULL DEFAULT 0, flight INTEGER)""",
    "CREATE INDEX chunks_used ON chunks (used) WHERE ready = 1",
    """CREATE TABLE leases (
        chunk INTEGER NOT NULL, holder INTEGER NOT NULL, hard INTEGER NOT NULL, soft INTEGER NOT NULL,
        PRIMARY KEY (chunk, holder)) WITHOUT ROWID""",
    """CREATE TABLE flights (
        id INTEGER PRIMARY KEY, chunk INTEGER NOT NULL, holder INTEGER NOT NULL, temp TEXT NOT NULL,
        reserved INTEGER NOT NULL DEFAULT 0, hard INTEGER NOT NULL, since REAL NOT NULL, beat REAL NOT NULL,
        lost INTEGER NOT NULL DEFAULT 0, waiting INTEGER NOT NULL DEFAULT 0, ticket INTEGER)""",
    """CREATE TRIGGER chunk_grows AFTER UPDATE OF bytes ON chunks WHEN new.bytes <> old.bytes BEGIN
        UPDATE account SET used = used + new.bytes - old.bytes; END""",
    """CREATE TRIGGER chunk_comes AFTER INSERT ON chunks WHEN new.bytes > 0 BEGIN
        UPDATE account SET used = used + new.bytes; END""",
    """CREATE TRIGGER chunk_goes AFTER DELETE ON chunks WHEN old.bytes > 0 BEGIN
        UPDATE account SET used = used - old.bytes; END""",
    """CREATE TRIGGER flight_grows AFTER UPDATE OF reserved ON flights WHEN new.reserved <> old.reserved BEGIN
        UPDATE account SET used = used + new.reserved - old.reserved; END""",
    """CREATE TRIGGER flight_goes AFTER DELETE ON flights WHEN old.reserved > 0 BEGIN
        UPDATE account SET used = used - old.reserved; END""",
    f"PRAGMA user_version = {VERSION}",
)
