"""What a store says of one object, without its bytes."""

from __future__ import annotations

from forebay._retry import RETRYABLE
from forebay._transfer._context import Context
from forebay._transfer._guard import stall_guard
from forebay.downloader import overrides
from forebay.types import ObjectInfo

__all__ = ["ask"]


async def ask(context: Context) -> ObjectInfo:
    """Call the downloader's best `stat`, with as many tries as the policy allows."""
    downloader, key, trials = context.source.downloader, context.source.key, context.trials()
    native = context.async_hooks and overrides(downloader, "astat")
    while True:
        context.requests += 1
        try:
            async with stall_guard(context.policy.timeout, f"no answer about {context.source.where} came"):
                if native:
                    return await downloader.astat(key)
                return await context.pool.run(downloader.stat, key)
        except RETRYABLE as exc:
            await context.pause(trials, exc)
        except Exception as exc:
            trials.conclude(exc)
            raise
