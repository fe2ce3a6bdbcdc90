"""Questions about objects, repeated by the policy that transfers have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from forebay._prefetch import io_thread, wait_for
from forebay._retry import RETRYABLE, Trials
from forebay._transfer import TransferPolicy

__all__ = ["patiently"]

T = TypeVar("T")


def patiently(options: Mapping[str, object] | None, question: Callable[[], T]) -> T:
    """Ask until there is an answer, or an error that another try would not change. The caller waits."""
    policy = TransferPolicy.from_options(options or {})
    trials = Trials(max_attempts=policy.max_attempts, backoff=policy.backoff)
    while True:
        try:
            answer = question()
        except RETRYABLE as exc:
            _pause(trials, exc)
        except Exception as exc:
            trials.conclude(exc)
            raise
        else:
            trials.succeeded()
            return answer


def _pause(trials: Trials, error: Exception) -> None:
    # On our own loop: the caller may be inside of one that is running.
    thread = io_thread()
    wait_for(thread.submit(lambda: trials.pause(error)), thread)
