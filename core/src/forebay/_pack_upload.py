"""Uploads one file after the other, through the sync hook or the async one, and tries again what may pass."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from forebay._retry import Backoff, Trials
from forebay.downloader import Downloader, overrides

__all__ = ["Uploader"]

_ATTEMPTS = 5
#: Seconds for a driver to close, and for a cancelled upload to end.
_CLOSE_DEADLINE = 5.0


class Uploader:
    """Stores files under keys. The async hook runs on a loop of its own, so that a caller may have one running."""

    def __init__(self, downloader: Downloader) -> None:
        self._downloader = downloader
        self._blocking = overrides(downloader, "upload_file")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def upload(self, key: str, path: Path) -> None:
        """Store the file; a transient failure is repeated a few times, any other is the caller's."""
        trials = Trials(max_attempts=_ATTEMPTS, backoff=Backoff(base=0.5))
        while True:
            try:
                self._once(key, path)
            except Exception as error:  # noqa: BLE001 - `pause` raises whatever may not be tried again
                self._run(trials.pause(error))
            else:
                trials.succeeded()
                return

    def _once(self, key: str, path: Path) -> None:
        if self._blocking:
            self._downloader.upload_file(key, path)
        else:
            self._run(self._downloader.aupload_file(key, path))

    def _run(self, work: Coroutine[Any, Any, None], timeout: float | None = None) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="forebay-pack", daemon=True)
            self._thread.start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(timeout)
        except BaseException:  # no half an upload stays, whatever came; it is raised again
            # Ctrl-C in this thread: the upload is told, and waited for, so that it does not outlive pack().
            if not future.done():
                future.cancel()
                concurrent.futures.wait([future], _CLOSE_DEADLINE)
            raise

    def close(self) -> None:
        """Close the downloader and end the loop."""
        try:
            if self._loop is not None:
                self._run(self._finish(), _CLOSE_DEADLINE)
        finally:
            try:
                self._downloader.close()
            finally:
                self._end_loop()

    async def _finish(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._downloader.aclose()
        finally:
            await loop.shutdown_asyncgens()
            await loop.shutdown_default_executor()  # where the hook ran something in a thread

    def _end_loop(self) -> None:
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_DEADLINE)
        if not self._thread.is_alive():
            self._loop.close()
        self._loop = self._thread = None
