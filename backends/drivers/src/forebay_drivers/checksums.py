"""Whole bodies on their way through a driver, compared with the store's own checksum of the object."""

from __future__ import annotations

from forebay._checksums import start_checksum
from forebay.exceptions import ChecksumMismatchError
from forebay_drivers.errors import Subject

__all__ = ["GCS_CHECKSUMS", "S3_CHECKSUMS", "BodyCheck", "check_body"]

#: Those that GCS keeps of an object; composed ones have no MD5.
GCS_CHECKSUMS = ("crc32c", "md5")
#: Those that S3 keeps of an object; it makes the first one by itself where nobody gives another.
S3_CHECKSUMS = ("crc64nvme", "crc32c", "crc32", "sha1", "sha256")

_PIECE = 1 << 20


class BodyCheck:
    """One body. The engine reads ranges and compares by itself; this is for those who ask for the whole at once.

    Args:
        checksums: What the store says of the object, as in `ObjectInfo`.
    """

    def __init__(self, checksums: tuple[str, ...] | None = None) -> None:
        self._started = start_checksum(checksums or ())

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        if self._started is not None:
            self._started[1].update(memoryview(data))

    def finish(self, subject: Subject) -> None:
        """Compare.

        Raises:
            ChecksumMismatchError: The bytes are others than the store has.
        """
        if self._started is None:
            return
        told, checksum = self._started
        algorithm, _, expected = told.partition(":")
        if (actual := checksum.hexdigest()) != expected:
            raise ChecksumMismatchError(
                subject.say(f"the body has the {algorithm} {actual}, but the store says {expected}"),
                url=subject.url,
                expected=told,
                actual=f"{algorithm}:{actual}",
            )


def check_body(data: bytes, checksums: tuple[str, ...] | None, subject: Subject) -> None:
    """Compare a whole body; takes a while for a large one."""
    check, view = BodyCheck(checksums), memoryview(data)
    for start in range(0, len(view), _PIECE):
        check.update(view[start : start + _PIECE])
    check.finish(subject)
