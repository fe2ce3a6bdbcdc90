"""When to try again, how long to wait before it, and when to stop: one policy for every request."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from forebay import _config
from forebay._url import redact
from forebay.exceptions import ForebayError, StorageError, TransientError

__all__ = ["RETRYABLE", "Backoff", "RetryBudget", "Trials", "is_retryable", "retry_budget"]

#: What may be tried again; `is_retryable` takes out our own errors that only look so (a ledger's timeout).
RETRYABLE = (TransientError, ConnectionError, TimeoutError)

#: Seconds between two signs of life while a pause goes on.
_BEAT = 5.0


def is_retryable(error: BaseException) -> bool:
    """Whether a failure may pass by itself: `TransientError`, `ConnectionError`, `TimeoutError` and nothing else."""
    if isinstance(error, ForebayError):
        return isinstance(error, TransientError)
    return isinstance(error, RETRYABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential waits with full jitter, so that many clients do not come back in step.

    Args:
        base: The longest wait after the first failure, in seconds; it doubles with each further one.
        cap: The longest wait of all, apart from what a store asks for.
        longest_asked: A store that asks for more than this (Retry-After) is not waited for.
    """

    base: float = 0.25
    cap: float = 20.0
    longest_asked: float = 120.0

    def delay(self, failures: int, asked: float | None = None) -> float:
        """Seconds to wait after so many failures in a row; never less than the store ``asked`` for."""
        ceiling = min(self.cap, self.base * 2.0 ** min(failures - 1, 60))
        return max(asked or 0.0, 0.0) + _config.random().uniform(0.0, ceiling)


class RetryBudget:
    """Bounds the retries of a whole process, so that an outage is not answered with a storm of requests.

    Each retry takes a token; each success and each tenth of a second give one back. Ordinary trouble never meets the
    bound: backoff alone keeps a few dozen requests below ten retries a second.
    """

    def __init__(self, capacity: int = 500, per_second: float = 10.0) -> None:
        self._capacity = float(capacity)
        self._per_second = per_second
        self._tokens = float(capacity)
        self._seen = _config.monotonic()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one token; False where none is left."""
        with self._lock:
            self._refill()
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True

    def succeeded(self) -> None:
        """Give a token back."""
        with self._lock:
            self._tokens = min(self._tokens + 1.0, self._capacity)

    def _refill(self) -> None:
        now = _config.monotonic()
        self._tokens = min(self._tokens + (now - self._seen) * self._per_second, self._capacity)
        self._seen = now


_budget: tuple[int, RetryBudget] | None = None


def retry_budget() -> RetryBudget:
    """The budget of this process; a forked child starts with a full one (and with a lock that nobody holds)."""
    global _budget
    if _budget is None or _budget[0] != os.getpid():
        _budget = (os.getpid(), RetryBudget())
    return _budget[1]


class Trials:
    """The tries of one request, from the first failure to the last.

    Args:
        max_attempts: Tries in all, the first included.
        backoff: How long to wait between them.
        budget: The process's bound; None takes `retry_budget`.
        beat: Called now and then while a pause goes on.
    """

    def __init__(
        self,
        *,
        max_attempts: int,
        backoff: Backoff,
        budget: RetryBudget | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._max_attempts = max_attempts
        self._backoff = backoff
        self._budget = budget or retry_budget()
        self._beat = beat
        self._earlier: list[str] = []

    @property
    def attempts(self) -> int:
        """How often it was tried, the running try included."""
        return len(self._earlier) + 1

    def succeeded(self) -> None:
        """The request is done."""
        self._budget.succeeded()

    def conclude(self, error: BaseException) -> None:
        """Write the history of the tries onto the error that ends them."""
        if isinstance(error, StorageError):
            error.attempts = self.attempts
        if self._earlier:
            error.add_note(f"gave up after {self.attempts} attempts; the earlier ones:")
            for number, line in enumerate(self._earlier, 1):
                error.add_note(f"  {number}: {line}")

    async def pause(self, error: Exception) -> None:
        """Wait before the next try, or raise ``error`` where there is to be none."""
        asked = getattr(error, "retry_after", None)
        reason = self._reason_to_stop(error, asked)
        if reason is not None:
            if reason:
                error.add_note(reason)
            self.conclude(error)
            raise error
        self._earlier.append(redact(f"{type(error).__name__}: {error}"))
        await self._sleep(self._backoff.delay(self.attempts - 1, asked))

    def _reason_to_stop(self, error: Exception, asked: float | None) -> str | None:
        if not is_retryable(error) or self.attempts >= self._max_attempts:
            return ""
        if asked is not None and asked > self._backoff.longest_asked:
            return f"the store asks to wait {asked:.0f} s, longer than {self._backoff.longest_asked:.0f} s"
        if not self._budget.take():
            return "not tried again: this process has used up its retry budget"
        return None

    async def _sleep(self, seconds: float) -> None:
        while seconds > _BEAT:
            await asyncio.sleep(_BEAT)
            self._beat()
            seconds -= _BEAT
        await asyncio.sleep(seconds)
        self._beat()
