"""Which class fsspec has for a protocol, and what to install where it has none that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec

from forebay._config import near
from forebay.exceptions import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["filesystem_class"]

#: Packages whose name is not in fsspec's own text.
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
    "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol", "hf": "huggingface_hub", "webdav": "webdav4[fsspec]",
    "http": "aiohttp", "https": "aiohttp", "git": "pygit2", "github": "requests", "hdfs": "pyarrow",
    "arrow_hdfs": "pyarrow", "webhdfs": "requests", "libarchive": "libarchive-c", "dropbox": "dropboxdrivefs",
    "oss": "ossfs", "box": "boxfs", "oci": "ocifs", "lakefs": "lakefs-spec", "gdrive": "gdrive_fsspec",
}  # fmt: skip


def filesystem_class(protocol: str) -> type[AbstractFileSystem]:
    """The class that serves ``protocol://``; imports its package.

    Raises:
        MissingDependencyError: fsspec knows the protocol, and its package is not installed; names what to install.
        ConfigError: fsspec does not know it; names the near ones.
    """
    try:
        found: type[AbstractFileSystem] = fsspec.get_filesystem_class(protocol)
    except ImportError as exc:
        package = _PACKAGES.get(protocol)
        hint = f"; install it with: pip install {package!r}" if package else ""
        raise MissingDependencyError(
            f"fsspec's file system for {protocol}:// cannot be used: {exc}{hint}", option="scheme"
        ) from exc
    except ValueError as exc:
        known = fsspec.available_protocols()
        raise ConfigError(
            f"fsspec knows no protocol {protocol!r}{near(protocol, known)} (it knows: {', '.join(sorted(known))})",
            option="scheme",
        ) from exc
    return found
