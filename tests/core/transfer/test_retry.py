"""When it is tried again, and how long the waits are."""

from __future__ import annotations

import asyncio
import os
import random

import pytest
from servers.forked import check_own_after_fork

from forebay import _config
from forebay._retry import Backoff, RetryBudget, Trials, is_retryable
from forebay._transfer import TransferPolicy
from forebay.exceptions import (
    CacheLockTimeoutError,
    ConfigError,
    ConnectionFailedError,
    ObjectNotFoundError,
    ServerError,
    StorageTimeoutError,
    ThrottledError,
)
from forebay.testing import run_async


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ServerError(), True),
        (ConnectionFailedError(), True),
        (StorageTimeoutError(), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (BrokenPipeError(), True),
        (ObjectNotFoundError(), False),
        (CacheLockTimeoutError(), False),
        (OSError(5, "io"), False),
        (RuntimeError(), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_what_may_pass_by_itself(error: BaseException, again: bool) -> None:
    assert is_retryable(error) is again


def test_waits_are_spread_over_the_whole_interval_n10(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(1)
    monkeypatch.setattr(_config, "random", lambda: generator)
    backoff = Backoff(base=1.0, cap=8.0)
    for failures, ceiling in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (5000, 8.0)]:
        waits = sorted(backoff.delay(failures) for _ in range(400))
        assert 0.0 <= waits[0] < 0.1 * ceiling
        assert 0.9 * ceiling < waits[-1] <= ceiling


def test_what_the_store_asks_for_is_the_least_n2() -> None:
    backoff = Backoff(base=0.5, cap=8.0)
    assert all(3.0 <= backoff.delay(1, asked=3.0) <= 3.5 for _ in range(100))
    assert backoff.delay(1, asked=-1.0) >= 0.0


async def _exhaust(trials: Trials, error: Exception) -> int:
    count = 0
    while True:
        count += 1
        await trials.pause(error)


def test_store_that_asks_for_an_hour_is_not_waited_for_n2() -> None:
    trials = Trials(max_attempts=5, backoff=Backoff(base=0.001), budget=RetryBudget())
    error = ThrottledError("slow down", retry_after=3600.0)
    with pytest.raises(ThrottledError) as caught:
        run_async(_exhaust(trials, error))
    assert "3600 s" in caught.value.__notes__[0]
    assert caught.value.attempts == 1


def test_budget_bounds_the_retries_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(_config, "monotonic", lambda: now)
    budget = RetryBudget(capacity=3, per_second=1.0)
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]
    budget.succeeded()
    assert [budget.take(), budget.take()] == [True, False]
    now += 2.0
    assert [budget.take() for _ in range(3)] == [True, True, False]
    trials = Trials(max_attempts=5, backoff=Backoff(base=0.001), budget=budget)
    with pytest.raises(ServerError) as caught:
        run_async(_exhaust(trials, ServerError("500")))
    assert "retry budget" in caught.value.__notes__[0]


def test_secrets_in_earlier_errors_are_redacted_u1() -> None:
    trials = Trials(max_attempts=2, backoff=Backoff(base=0.001), budget=RetryBudget())

    async def main() -> None:
        await trials.pause(ServerError("GET https://user:hunter2@host/x?X-Amz-Signature=abcdef failed"))
        await trials.pause(ServerError("last"))

    with pytest.raises(ServerError) as caught:
        run_async(main())
    notes = "\n".join(caught.value.__notes__)
    assert "https://" in notes
    assert "hunter2" not in notes
    assert "abcdef" not in notes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_has_a_budget_and_lock_of_its_own() -> None:
    check_own_after_fork("forebay._retry", "retry_budget")


def test_policy_from_options() -> None:
    policy = TransferPolicy.from_options(
        {"part_size": "4MiB", "timeout": 5, "max_attempts": 2, "max_concurrency": 3, "headers": {}}
    )
    assert (policy.part_size, policy.timeout, policy.max_attempts, policy.parallel_parts) == (4 << 20, 5.0, 2, 3)
    assert TransferPolicy.from_options({}) == TransferPolicy()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("part_size", 0),
        ("part_size", "8 parsecs"),
        ("part_size", 1.5),
        ("timeout", 0),
        ("timeout", "soon"),
        ("timeout", float("inf")),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_concurrency", 0.5),
    ],
)
def test_policy_refuses_values_that_cannot_be_used(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        TransferPolicy.from_options({name: value})
    assert caught.value.option == name
