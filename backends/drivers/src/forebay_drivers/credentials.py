"""A user's credentials callable: called before what it gave expires, once for all callers, and never in the way.

As long as the old credentials are valid they are used while new ones are fetched in the background, and a failed fetch
is tried again with growing, jittered pauses. Only without valid ones does anybody wait.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from forebay._config import random, wall_clock
from forebay.exceptions import (
    AuthenticationError,
    ConfigError,
    ConnectionFailedError,
    StorageError,
    StorageTimeoutError,
)
from forebay_drivers.errors import hidden_texts

__all__ = ["CredentialSource", "Credentials", "expiry"]

logger = logging.getLogger("forebay.drivers")

_DEADLINE = 30.0
_MARGIN = 300.0  # seconds before the expiry at which the refresh begins, at most
_SHARE = 0.2  # … and not more than this part of the life
_REMEMBERED = 24  # texts of credentials before the last ones
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the callable gave, and when it ends (seconds since 1970, None: never)."""

    values: Mapping[str, object] = field(repr=False)
    expires_at: float | None = None
    serial: int = 0


class CredentialSource:
    """The callable's credentials in one process. Methods may be called from any thread.

    Args:
        call: Returns a mapping, or an awaitable of one. ``expires_at`` in it is an aware datetime, seconds since 1970
            or an ISO text; without it the credentials are kept until a store refuses them.
        check: Looks at the mapping and raises `ConfigError` where something is missing.
        trusted: The callable is ours: its errors are told as they are, for they hold no secret.
    """

    def __init__(
        self,
        call: Callable[[], object],
        check: Callable[[Mapping[str, object]], None] = lambda values: None,
        *,
        clock: Callable[[], float] = wall_clock,
        deadline: float = _DEADLINE,
        trusted: bool = False,
    ) -> None:
        self._call = call
        self._check = check
        self._clock = clock
        self._deadline = deadline
        self._trusted = trusted
        self._lock = threading.Lock()
        self._held: Credentials | None = None
        self._refresh_at = 0.0
        self._texts: tuple[str, ...] = ()  # the newest first
        self._secrets: tuple[str, ...] = ()
        self._failures = 0
        self._pending: Future[Credentials] | None = None

    @property
    def serial(self) -> int:
        """Counts up with each set of credentials; for `discard`."""
        with self._lock:
            return 0 if self._held is None else self._held.serial

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts in the credentials, also in the ones before: no error may show them, and answers come late."""
        return self._secrets

    def get(self) -> Credentials:
        """Valid credentials: at once where there are some, else as soon as the callable has given them.

        Raises:
            AuthenticationError: There are no valid ones and the callable failed.
            ConnectionFailedError: The same, and the failure may pass.
            StorageTimeoutError: The callable did not return within the deadline.
        """
        held, pending = self._now()
        if held is not None:
            return held
        assert pending is not None
        try:
            return pending.result(self._deadline)
        except Exception as exc:  # noqa: BLE001 - a user's callable may raise anything
            problem = self._problem(exc, done=pending.done())
        raise problem

    async def aget(self) -> Credentials:
        """Async twin of `get`: waits without blocking the loop."""
        held, pending = self._now()
        if held is not None:
            return held
        assert pending is not None
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(pending)), self._deadline)
        except Exception as exc:  # noqa: BLE001 - a user's callable may raise anything
            problem = self._problem(exc, done=pending.done())
        raise problem

    def discard(self, serial: int) -> None:
        """A store has refused the credentials with this number: the next caller gets others."""
        with self._lock:
            if self._held is not None and self._held.serial == serial:
                self._refresh_at = 0.0
                self._held = Credentials({}, expires_at=0.0, serial=serial)

    def _now(self) -> tuple[Credentials | None, Future[Credentials] | None]:
        """Valid credentials if there are any; else the fetch to wait for. Starts one where it is time."""
        now = self._clock()
        with self._lock:
            held = self._held
            valid = held is not None and (held.expires_at is None or now < held.expires_at)
            if self._pending is None and (not valid or now >= self._refresh_at):
                pending: Future[Credentials] = Future()
                thread = threading.Thread(target=self._fetch, args=(pending,), name="forebay-credentials", daemon=True)
                self._pending = pending
                try:
                    thread.start()
                except BaseException:  # no thread can be had now: the next caller tries again; it is raised again
                    self._pending = None
                    raise
            return (held if valid else None), self._pending

    def _fetch(self, pending: Future[Credentials]) -> None:
        try:
            values = self._call()
            if inspect.isawaitable(values):
                values = asyncio.run(_awaited(values))
            if not isinstance(values, Mapping):
                raise ConfigError(
                    f"the credentials callable returned a {type(values).__name__}, not a mapping", option="credentials"
                )
            self._check(values)
            expires_at = expiry(values.get("expires_at"))
        except BaseException as exc:  # noqa: BLE001 - a thread's edge: the error goes to whoever waits
            with self._lock:
                held = self._held
                self._failures += 1
                pause = min(_FIRST_PAUSE * 2 ** (self._failures - 1), _LAST_PAUSE)
                self._refresh_at = self._clock() + pause * random().uniform(0.5, 1.0)
                self._pending = None
            pending.set_exception(exc)
            if held is not None:  # nobody waits while the old ones are valid; else whoever waits has the error itself
                logger.warning("the credentials could not be refreshed (%s)", type(exc).__name__)
            return
        with self._lock:
            serial = 1 if self._held is None else self._held.serial + 1
            self._held = Credentials(dict(values), expires_at, serial)
            self._texts = tuple(dict.fromkeys((*_texts(values), *self._texts[:_REMEMBERED])))
            self._secrets = hidden_texts(self._texts)
            self._refresh_at = self._when(expires_at)
            self._failures, self._pending = 0, None
            held = self._held
        pending.set_result(held)

    def _when(self, expires_at: float | None) -> float:
        """The moment of the next refresh: before the expiry, another for each process."""
        if expires_at is None:
            return float("inf")
        life = max(expires_at - self._clock(), 0.0)
        return expires_at - min(_MARGIN, life * _SHARE) * random().uniform(1.0, 2.0)

    def _problem(self, exc: BaseException, *, done: bool) -> Exception:
        if isinstance(exc, ConfigError) or (self._trusted and isinstance(exc, StorageError)):
            return exc
        error: Exception
        if not done:
            error = StorageTimeoutError(f"the credentials callable did not return within {self._deadline:g} s")
        elif isinstance(exc, ConnectionError | TimeoutError):
            error = ConnectionFailedError(f"the credentials callable failed with {type(exc).__name__}")
        else:
            error = AuthenticationError(f"the credentials callable failed with {type(exc).__name__}")
        error.__cause__ = exc
        return error


def _texts(values: Mapping[str, object]) -> list[str]:
    return [value for name, value in values.items() if name != "expires_at" and isinstance(value, str)]


async def _awaited(values: Any) -> Any:
    return await values


def expiry(value: object) -> float | None:
    """A moment in seconds since 1970 from what callables give.

    Raises:
        ConfigError: It is no moment.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = ()
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(
        "'expires_at' of the credentials is no datetime, no seconds since 1970 and no ISO text", option="credentials"
    )
