"""The ledger's tables. Triggers keep ``account.used`` in step with the rows, so the account cannot drift."""

from __future__ import annotations

__all__ = ["SCHEMA", "VERSION"]

VERSION = 3

# chunks.ready with bytes > 0 stands for a file; flights.reserved for a temporary one. chunks.flight is the flight that
# may publish; other flights of the chunk are lost ones whose owner has not noticed yet. leases hold a chunk that is
# ready, being fetched or wanted; a row lives while one of the three is true. chunks.run is the run in which the chunk
# was last verified or published; chunks.number its number in its dataset, where that is known; chunks.early says that
# it was fetched ahead of its reader and not read yet. chunks.arrived counts up as chunks become ready, and no id of a
# chunk is used twice: so a process can keep up with what is ready. plans and orders are what readers will read; two
# tables, for the place moves with each chunk and the order once an epoch. Ids of holders and flights are random: they
# outlive a ledger that is rebuilt, and must not name somebody else in the new one.
SCHEMA = (
    """CREATE TABLE account (
        id INTEGER PRIMARY KEY CHECK (id = 1), used INTEGER NOT NULL, stray INTEGER NOT NULL, budget INTEGER,
        run INTEGER NOT NULL, boot TEXT NOT NULL, ticket INTEGER NOT NULL, arrivals INTEGER NOT NULL)""",
    "INSERT INTO account VALUES (1, 0, 0, NULL, 0, '', 0, 0)",
    """CREATE TABLE holders (
        id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, pid INTEGER NOT NULL, host TEXT NOT NULL,
        budget INTEGER NOT NULL, since REAL NOT NULL)""",
    """CREATE TABLE chunks (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, url TEXT NOT NULL,
        ready INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, digest TEXT, etag TEXT,
        run INTEGER NOT NULL DEFAULT -1,
        used REAL NOT NULL DEFAULT 0, flight INTEGER, number INTEGER, early INTEGER NOT NULL DEFAULT 0,
        arrived INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX chunks_used ON chunks (used) WHERE ready = 1",
    "CREATE INDEX chunks_arrived ON chunks (arrived) WHERE ready = 1",
    "CREATE INDEX chunks_early ON chunks (id) WHERE early = 1",
    """CREATE TABLE leases (
        chunk INTEGER NOT NULL, holder INTEGER NOT NULL, hard INTEGER NOT NULL, soft INTEGER NOT NULL,
        PRIMARY KEY (chunk, holder)) WITHOUT ROWID""",
    """CREATE TABLE flights (
        id INTEGER PRIMARY KEY, chunk INTEGER NOT NULL, holder INTEGER NOT NULL, temp TEXT NOT NULL,
        reserved INTEGER NOT NULL DEFAULT 0, hard INTEGER NOT NULL, since REAL NOT NULL, beat REAL NOT NULL,
        lost INTEGER NOT NULL DEFAULT 0, waiting INTEGER NOT NULL DEFAULT 0, ticket INTEGER)""",
    """CREATE TABLE plans (
        id INTEGER PRIMARY KEY, holder INTEGER NOT NULL, dataset TEXT NOT NULL, version INTEGER NOT NULL,
        place INTEGER NOT NULL, moved REAL NOT NULL)""",
    """CREATE TABLE orders (
        plan INTEGER PRIMARY KEY, version INTEGER NOT NULL, turn INTEGER NOT NULL, chunks BLOB NOT NULL)""",
    """CREATE TABLE windows (
        id INTEGER PRIMARY KEY, holder INTEGER NOT NULL, bytes INTEGER NOT NULL, need INTEGER NOT NULL)""",
    "CREATE TRIGGER plan_goes AFTER DELETE ON plans BEGIN DELETE FROM orders WHERE plan = old.id; END",
    """CREATE TRIGGER chunk_arrives AFTER UPDATE OF ready, number ON chunks
        WHEN new.ready = 1 AND (old.ready = 0 OR old.number IS NOT new.number) BEGIN
        UPDATE account SET arrivals = arrivals + 1;
        UPDATE chunks SET arrived = (SELECT arrivals FROM account) WHERE id = new.id; END""",
    """CREATE TRIGGER chunk_found AFTER INSERT ON chunks WHEN new.ready = 1 BEGIN
        UPDATE account SET arrivals = arrivals + 1;
        UPDATE chunks SET arrived = (SELECT arrivals FROM account) WHERE id = new.id; END""",
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
