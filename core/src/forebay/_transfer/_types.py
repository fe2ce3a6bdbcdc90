"""What goes into a transfer, what bounds it, what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from forebay import _config
from forebay._retry import Backoff
from forebay.downloader import Downloader
from forebay.exceptions import ConfigError
from forebay.types import Capabilities, CodecSpec

__all__ = ["Limiter", "Room", "Source", "TransferPolicy", "TransferResult"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One object and what is promised of it.

    Args:
        downloader: Where it comes from.
        capabilities: What ``probe`` said of the downloader in this process.
        key: Its key below the downloader's root.
        url: Its redacted URL, for people.
        backend: The backend's name, for people.
        stored_bytes: Its size in the store, where known.
        decoded_bytes: Its size once decompressed, where known.
        codec: How it is compressed; None where it is stored plain.
        digest: ``"algorithm:hex"`` of the decoded bytes, where promised.
        etag: The validator that an earlier look gave, where all bytes have to be of that version.
        standalone: The object is wanted as it is now, not as an index promises it: one that is replaced while it is
            read is read once more from the start, where a chunk of a dataset is an `ObjectChangedError`.
    """

    downloader: Downloader
    capabilities: Capabilities
    key: str
    url: str
    backend: str
    stored_bytes: int | None
    decoded_bytes: int | None
    codec: CodecSpec | None
    digest: str | None
    etag: str | None = None
    standalone: bool = False

    @property
    def where(self) -> str:
        """The object in words."""
        # For http the URL of one object is its root, and the key is empty: a '' in a message helps nobody.
        return (
            f"{self.key!r} ({self.url}, backend {self.backend})" if self.key else f"{self.url} (backend {self.backend})"
        )

    @property
    def expected_stored(self) -> int | None:
        """The number of bytes that the store has to send, where known."""
        if self.stored_bytes is None and self.codec is None:
            return self.decoded_bytes
        return self.stored_bytes

    @property
    def expected_decoded(self) -> int | None:
        """The number of bytes that the file has to have, where known."""
        if self.decoded_bytes is None and self.codec is None:
            return self.stored_bytes
        return self.decoded_bytes


class Room(Protocol):
    """The place on the disk that a transfer may fill."""

    async def ensure(self, total: int) -> None:
        """Return once ``total`` bytes may lie in the temporary file."""
        ...


class Limiter(Protocol):
    """What may be in flight at one time, over all transfers."""

    def slot(self, priority: tuple[int, ...], nbytes: int) -> AbstractAsyncContextManager[None]:
        """Hold one request and ``nbytes`` in flight; granted by priority, smallest first."""
        ...

    def moved(self, nbytes: int) -> None:
        """Count bytes that arrived; 0 is a mere sign of life."""
        ...

    def throttled(self) -> None:
        """The store asked for fewer requests."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPolicy:
    """How objects are fetched.

    Args:
        part_size: Bytes of one ranged request.
        parallel_parts: Parts of one object that are in flight or wait for their turn to be written.
        max_attempts: Tries of one request, the first included.
        timeout: Seconds without a byte after which a try is given up.
        backoff: The waits between tries.
    """

    part_size: int = 8 * MIB
    parallel_parts: int = 8
    max_attempts: int = 6
    timeout: float = 30.0
    backoff: Backoff = field(default_factory=Backoff)

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> TransferPolicy:
        """Read ``part_size``, ``timeout``, ``max_attempts`` and ``max_concurrency``; other options are not ours.

        Raises:
            ConfigError: A value that cannot be used.
        """
        default = cls()
        size = options.get("part_size")
        part_size = default.part_size
        if size is not None:
            part_size = _config.parse_size(size, option="part_size")  # type: ignore[arg-type]  # it checks the type itself
            if part_size == 0:
                raise ConfigError("part_size must be positive", option="part_size")
        concurrency = _number(options, "max_concurrency", default.parallel_parts)
        return cls(
            part_size=part_size,
            parallel_parts=min(int(concurrency), default.parallel_parts),
            max_attempts=int(_number(options, "max_attempts", default.max_attempts)),
            timeout=_number(options, "timeout", default.timeout),
        )


def _number(options: Mapping[str, object], name: str, default: float) -> float:
    value = options.get(name)
    if value is None:
        return default
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf") or (isinstance(default, int) and number < 1.0):
        raise ConfigError(f"{name} must be a positive number, not {value!r}", option=name)
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResult:
    """What a transfer did. ``digest`` is the ``"xxh3-64:hex"`` of the file; ``stages`` are in seconds."""

    bytes: int
    stored_bytes: int
    digest: str
    etag: str | None
    requests: int
    retries: int
    stages: Mapping[str, float] = field(default_factory=dict)
