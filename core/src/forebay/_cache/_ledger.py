"""The one SQLite connection of this process to a ledger, its waiting, and its recovery.

Traps that shape it, each measured: a connection open at ``fork()`` lets parent and child lose each other's writes;
opening and closing the database file in the same process drops its locks, so nothing but SQLite opens it; SQLite's busy
handler sleeps up to 100 ms and starves, so waiting is ours.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from forebay import _config
from forebay._cache._layout import Layout
from forebay._cache._platform import disk_is_full, remedy_text
from forebay._cache._schema import SCHEMA, VERSION
from forebay._file_lock import lock_file, unlock_file
from forebay.exceptions import CacheCorruptError, CacheError, CacheFullError, CacheLockTimeoutError

__all__ = ["Ledger", "Work"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
logger = logging.getLogger("forebay")

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
#: What SQLite says too where its log and its shared memory find no room.
_MAYBE_FULL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
#: What SQLite calls I/O errors: a full disk has no room for the index of its log; a file is shorter than it was left.
_RENAMED = {
    sqlite3.SQLITE_IOERR_SHMSIZE: sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_SHORT_READ: sqlite3.SQLITE_CORRUPT,
}
#: Seconds: the first wait for a locked ledger, and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.002, 0.008
#: Whoever waited so long asks this often from then on, and so comes before those who wait since a moment ago.
_PATIENCE, _LAST_WAIT = 0.006, 0.001


def _code(exc: sqlite3.Error) -> int:
    code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return _RENAMED.get(code, code & 0xFF)


class Ledger:
    """Short transactions on the ledger of one directory, from any thread."""

    def __init__(self, layout: Layout, adopt: Work[object], begin: Work[object], *, timeout: float = 30.0) -> None:
        self.layout = layout
        self.timeout = timeout
        self._adopt = adopt  # fills a new ledger from what lies in the directory
        self._begin = begin  # comes first in each write transaction
        self.mutex = threading.RLock()  # guards everything below; held for one attempt, never while waiting
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._inside = False  # the thread that holds the mutex is in the midst of a step
        self._close_behind = self._over = False
        self._changes = 0
        self._data_version: int | None = None
        self._later: deque[Work[object]] = deque()

    def write(self, work: Work[T], then: Callable[[T], object] | None = None) -> T:
        """Run ``work`` in a write transaction; when it is committed, ``then`` with its result, before anybody else.

        Raises:
            CacheLockTimeoutError: The ledger stayed locked past the deadline.
            CacheError: The ledger cannot be written, or ``write`` was called from within a transaction.
        """
        return self._attempt(lambda connection: self._transaction(connection, work, then))

    def write_or_defer(self, work: Work[T]) -> T | None:
        """Like `write`, for what must not fail: what cannot be done now is done with the next transaction."""
        if self.mutex.acquire(blocking=False):
            try:
                nested = self._inside  # a stranger's finalizer, or a signal handler, in the midst of a step of ours
            finally:
                self.mutex.release()
            if nested:
                self._later.append(work)
                return None
        try:
            return self.write(work)
        except (CacheError, OSError) as exc:
            self.defer(work, exc)
            return None
        except Exception:  # a mistake of ours: it would be one in each transaction from now on
            raise
        except BaseException as exc:  # an interrupt; it is raised again
            self.defer(work, exc)
            raise

    def defer(self, work: Work[object], exc: BaseException) -> None:
        """Have ``work`` done with the next transaction, because of ``exc``."""
        self._later.append(work)
        if isinstance(exc, Exception):  # else an interrupt, which goes on its way
            logger.warning("%s; it is put right with the next change of the cache", exc)

    def quick(self, work: Work[T | None], then: Callable[[T], object]) -> T | None:
        """Like `write`, for work whose only change is one statement, its last: SQLite commits that by itself.

        The lock is held for that statement only, about half as long as in `write`. None where there was nothing to do,
        or where `write` has something to put right first.
        """

        def step(connection: sqlite3.Connection) -> T | None:
            result = None if self._later else work(connection)
            if result is not None:
                self._changes += 1
                then(result)
            return result

        return self._attempt(step)

    def read(self, work: Work[T]) -> T:
        """Run ``work`` on one consistent state of the ledger."""

        def consistent(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                if connection.in_transaction:  # some errors end it
                    connection.execute("ROLLBACK")

        return self._attempt(consistent)

    def version(self) -> int:
        """A number that moves when this or another process changed the ledger."""

        def look(connection: sqlite3.Connection) -> int:
            (found,) = connection.execute("PRAGMA data_version").fetchone()
            if found != self._data_version:
                self._data_version = found
                self._changes += 1
            return self._changes

        return self._attempt(look)

    def shrink_log(self) -> None:
        """Give back the disk space of the log, where no other process reads it at this moment."""
        self._attempt(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())

    def close(self, *, for_good: bool = False) -> None:
        """Close the connection; the next use opens another. In the midst of a step it is closed behind that.

        ``for_good``: so is each connection that anybody opens later; no fork would close it.
        """
        with self.mutex:
            self._over = self._over or for_good
            if self._inside:
                self._close_behind = True
            else:
                self.disconnect()

    def disconnect(self) -> None:
        """Close the connection now, whatever it is used for."""
        with self.mutex:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def reset_after_fork(self) -> None:
        """In a forked child: the connection was closed before the fork, the lock may be another thread's."""
        self.mutex = threading.RLock()
        self._inside = self._close_behind = False
        self._later.clear()

    def _transaction(self, connection: sqlite3.Connection, work: Work[T], then: Callable[[T], object] | None) -> T:
        connection.execute("BEGIN IMMEDIATE")
        later = len(self._later)
        try:
            self._begin(connection)
            for number in range(later):
                self._later[number](connection)
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:  # no transaction stays open, whatever came; it is raised again
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        for _ in range(later):
            self._later.popleft()
        self._changes += 1
        if then is not None:
            then(result)
        return result

    def _attempt(self, step: Work[T]) -> T:
        begin: float | None = None
        wait = _FIRST_WAIT
        repaired = False
        while True:
            try:
                with self.mutex:
                    if self._inside:
                        raise CacheError("the cache was called from within its own transaction")
                    return self._step(step)
            except sqlite3.Error as exc:
                code = _code(exc)
                if code in _DAMAGED and not repaired:
                    repaired = True
                    self._replace_damaged(exc)
                    continue
                if code not in _BUSY:
                    raise self._translated(exc, code) from exc
                now = _config.monotonic()
                begin = begin or now
                if now - begin > self.timeout:
                    raise CacheLockTimeoutError(
                        f"the ledger of {self.layout.directory} stayed locked for {self.timeout:.0f} s: a process that"
                        " uses it is stopped or the disk hangs",
                        path=str(self.layout.ledger),
                    ) from exc
            time.sleep(wait * (0.2 + 0.8 * _config.random().random()))
            wait = min(wait * 1.5, _LONGEST_WAIT) if now - begin < _PATIENCE else _LAST_WAIT

    def _step(self, step: Work[T]) -> T:
        """Run one attempt with the mutex; from its first moment on, whatever comes in between sees that it does."""
        try:
            self._inside = True
            return step(self._connect())
        finally:
            self._inside = False
            if self._close_behind or self._over:
                self._close_behind = False
                self.close()

    def _translated(self, exc: sqlite3.Error, code: int) -> Exception:
        full = code == sqlite3.SQLITE_FULL
        if code in _MAYBE_FULL:
            full = disk_is_full(self.layout.directory)
        if full:
            text = "the disk is full, the ledger cannot be written: free some space there, or run forebay cache clear"
        elif code == sqlite3.SQLITE_READONLY:
            text = "the ledger is read-only for this user"
        elif code in _DAMAGED:
            text = f"the ledger is damaged and could not be rebuilt ({exc})"
        elif isinstance(exc, sqlite3.ProgrammingError | sqlite3.IntegrityError | sqlite3.InterfaceError):
            return exc  # a mistake of ours, to be seen as it is
        else:
            text = f"the ledger cannot be used ({exc}): {remedy_text(self.layout.directory)}"
        kind = CacheError
        if code in _DAMAGED:
            kind = CacheCorruptError
        elif full:
            kind = CacheFullError
        return kind(f"{self.layout.directory}: {text}", path=str(self.layout.ledger))

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None:
            try:
                found = os.stat(self.layout.ledger)
                if (found.st_dev, found.st_ino) != self._identity:
                    self.disconnect()  # removed or rebuilt by somebody; our rows lie in the old one
            except FileNotFoundError:
                self.disconnect()
        if self._connection is None:
            self._identity = None  # what was open before says nothing of what may be damaged now
            self._connection = self._open()
            self._data_version = None
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self.layout.prepare(private=False)
        found = os.stat(self.layout.ledger)
        connection = sqlite3.connect(
            self.layout.ledger, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            connection.execute("PRAGMA page_size = 1024")  # rows are small, and each change is logged by the page
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise CacheCorruptError(
                    f"the file system of {self.layout.directory} cannot hold the ledger (journal mode {mode}):"
                    f" {remedy_text(self.layout.directory)}",
                    path=str(self.layout.ledger),
                )
            # A power cut may damage the ledger; it is rebuilt from the directory then, and every digest is checked.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
            self._create(connection)
        except BaseException:  # no connection stays open, whatever came; it is raised again
            connection.close()
            raise
        self._identity = (found.st_dev, found.st_ino)
        return connection

    def _create(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if connection.execute("PRAGMA user_version").fetchone() == (0,):
                    for statement in SCHEMA:
                        connection.execute(statement)
                    self._adopt(connection)
                connection.execute("COMMIT")
            except BaseException:  # as in a transaction of ours; it is raised again
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        elif version != VERSION:
            raise CacheCorruptError(
                f"{self.layout.ledger} is of version {version}, this forebay reads {VERSION}: delete the cache"
                " directory or choose another",
                path=str(self.layout.ledger),
            )

    def _replace_damaged(self, exc: sqlite3.Error) -> None:
        """Put the damaged ledger aside, once for all processes; the next connection makes a new one."""
        with self.mutex:
            seen = self._identity
            self.close()
        fd = lock_file(self.layout.directory / "repair.lock", self.timeout)
        if fd is None:
            raise CacheLockTimeoutError(
                f"the repair of {self.layout.ledger} by another process does not end", path=str(self.layout.ledger)
            ) from exc
        try:
            try:
                found = os.stat(self.layout.ledger)
            except FileNotFoundError:
                return
            if seen is not None and (found.st_dev, found.st_ino) != seen:
                return  # somebody was faster
            if seen is None and self._opens_well():
                return
            logger.warning(
                "the ledger of %s is damaged (%s); it is rebuilt from the directory", self.layout.directory, exc
            )
            aside = self.layout.directory / f"ledger.damaged.{secrets.token_hex(4)}"
            for ending in ("-wal", "-shm"):
                (self.layout.directory / f"ledger.sqlite{ending}").unlink(missing_ok=True)
            os.replace(self.layout.ledger, aside)
            aside.unlink(missing_ok=True)
        finally:
            unlock_file(fd)

    def _opens_well(self) -> bool:
        try:
            self._open().close()
        except sqlite3.DatabaseError as exc:
            return _code(exc) not in _DAMAGED
        return True
