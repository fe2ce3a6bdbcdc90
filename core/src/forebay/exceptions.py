"""Every error Forebay raises by itself.

One class a cause. The message comes first and stands alone, because ``torch`` rebuilds a worker's error from its class
and text; the context attributes are for programs. ``E("text")`` works for every class, and every error pickles.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AccessDeniedError",
    "AuthenticationError",
    "BudgetTooSmallError",
    "CacheCorruptError",
    "CacheError",
    "CacheFullError",
    "CacheLockTimeoutError",
    "ChecksumMismatchError",
    "ConfigError",
    "ConnectionFailedError",
    "DatasetError",
    "DecompressionError",
    "ForebayError",
    "ForkedRuntimeError",
    "IncompleteBodyError",
    "IntegrityError",
    "InvalidIndexError",
    "InvalidRangeError",
    "InvalidURLError",
    "MissingDependencyError",
    "ObjectChangedError",
    "ObjectNotFoundError",
    "PluginConflictError",
    "PluginError",
    "PluginLoadError",
    "PrefetchClosedError",
    "PrefetchError",
    "ServerError",
    "SizeMismatchError",
    "StorageError",
    "StorageTimeoutError",
    "ThrottledError",
    "TransientError",
    "UnknownSchemeError",
    "UnsafePickleError",
    "UnsupportedFormatError",
    "UnsupportedOperationError",
    "WorkerCrashedError",
]


def _rebuild(cls: type[ForebayError], message: str, state: dict[str, Any]) -> ForebayError:
    error = cls(message)
    error.__dict__.update(state)
    return error


class ForebayError(Exception):
    """The root of everything that Forebay raises by itself."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The text of the error, complete on its own."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        # OSError and KeyError print their arguments in ways of their own; one text everywhere.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))


class ConfigError(ForebayError, ValueError):
    """An option, a setting or a URL that cannot be used; raised before any I/O."""

    def __init__(self, message: str = "", *, option: str | None = None, origin: str | None = None) -> None:
        super().__init__(message)
        self.option = option
        self.origin = origin


class InvalidURLError(ConfigError):
    """A URL that cannot be read as one."""


class UnknownSchemeError(ConfigError):
    """No installed backend serves the scheme."""


class MissingDependencyError(ConfigError, ImportError):
    """A package that the requested feature needs is not installed."""


class PluginError(ForebayError):
    """A plugin that cannot be used."""

    def __init__(
        self,
        message: str = "",
        *,
        entry_point: str | None = None,
        distribution: str | None = None,
        version: str | None = None,
    ) -> None:
        super().__init__(message)
        self.entry_point = entry_point
        self.distribution = distribution
        self.version = version


class PluginLoadError(PluginError):
    """A plugin failed while it was imported, registered or loaded."""


class PluginConflictError(PluginError):
    """Two plugins claim the same name, and no setting says which one serves it."""


class StorageError(ForebayError):
    """A store refused or failed a request. ``url`` never holds a secret."""

    retryable = False

    def __init__(
        self,
        message: str = "",
        *,
        url: str | None = None,
        key: str | None = None,
        backend: str | None = None,
        attempts: int = 1,
        status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.url = url
        self.key = key
        self.backend = backend
        self.attempts = attempts
        self.status = status
        self.request_id = request_id


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """There is no object under the key."""


class AccessDeniedError(StorageError, PermissionError):
    """The store knows who asks and says no."""


class AuthenticationError(StorageError):
    """The store does not accept the credentials, or there are none."""


class ObjectChangedError(StorageError):
    """The object was replaced while it was read."""


class InvalidRangeError(StorageError, ValueError):
    """A byte range that does not lie in the object."""


class UnsupportedOperationError(StorageError):
    """The backend, or the server behind it, cannot do what was asked."""


class ForkedRuntimeError(StorageError):
    """A driver's runtime was inherited through ``fork()`` and cannot work in this process."""


class TransientError(StorageError):
    """A failure that may pass: the engine tries again. ``retry_after`` is in seconds."""

    retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        url: str | None = None,
        key: str | None = None,
        backend: str | None = None,
        attempts: int = 1,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(
            message, url=url, key=key, backend=backend, attempts=attempts, status=status, request_id=request_id
        )
        self.retry_after = retry_after


class ThrottledError(TransientError):
    """The store asks for fewer requests."""


class ServerError(TransientError):
    """The store failed on its side."""


class IncompleteBodyError(TransientError):
    """A body ended before its promised length, or a hook wrote nothing."""


class ConnectionFailedError(TransientError, ConnectionError):
    """The connection could not be made, or broke."""


class StorageTimeoutError(TransientError, TimeoutError):
    """The store did not answer, or a body stopped moving, within the deadline."""


class IntegrityError(ForebayError):
    """Bytes that are not what was promised."""

    def __init__(
        self, message: str = "", *, url: str | None = None, expected: str | None = None, actual: str | None = None
    ) -> None:
        super().__init__(message)
        self.url = url
        self.expected = expected
        self.actual = actual


class ChecksumMismatchError(IntegrityError):
    """The digest of the bytes is another than the recorded one."""


class DecompressionError(IntegrityError):
    """The compressed bytes are damaged, cut off, or of another kind."""


class SizeMismatchError(IntegrityError):
    """The number of bytes is another than the promised one."""


class DatasetError(ForebayError):
    """A dataset that cannot be read as one."""

    def __init__(self, message: str = "", *, url: str | None = None) -> None:
        super().__init__(message)
        self.url = url


class InvalidIndexError(DatasetError):
    """The index is missing a field, damaged, or points outside of the dataset."""


class UnsupportedFormatError(DatasetError):
    """No installed format, codec or leaf type reads the data."""


class UnsafePickleError(DatasetError):
    """Items are pickled, and reading them would run code from the dataset."""


class CacheError(ForebayError):
    """The local cache cannot do what was asked."""

    def __init__(self, message: str = "", *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class CacheFullError(CacheError):
    """No room within the deadline; the message says who holds what."""


class CacheLockTimeoutError(CacheError, TimeoutError):
    """The ledger stayed locked past the deadline."""


class CacheCorruptError(CacheError):
    """The cache directory is damaged, of another version, or on a file system that cannot serve it."""


class BudgetTooSmallError(CacheError, ValueError):
    """The budget cannot hold what must be in it at one time; the message shows the arithmetic."""


class PrefetchError(ForebayError):
    """The prefetch engine cannot go on."""


class PrefetchClosedError(PrefetchError):
    """The dataset or engine was closed while somebody waited for it."""


class WorkerCrashedError(PrefetchError):
    """The I/O thread or a worker process died."""
