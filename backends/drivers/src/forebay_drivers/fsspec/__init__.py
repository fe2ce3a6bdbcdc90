"""The driver over any fsspec file system: natively async where the file system is, else for use in threads."""

from __future__ import annotations

from forebay_drivers.fsspec._adlfs import AzureDialect, blob_info, download_options
from forebay_drivers.fsspec._blocking import BlockingDriver
from forebay_drivers.fsspec._bucket import check_content_range
from forebay_drivers.fsspec._dialect import Dialect, HttpDialect
from forebay_drivers.fsspec._errors import translate
from forebay_drivers.fsspec._gcsfs import GcsDialect, resource_checksums, shown_checksums
from forebay_drivers.fsspec._info import CHECKSUMS, object_info
from forebay_drivers.fsspec._native import NativeDriver
from forebay_drivers.fsspec._packages import filesystem_class
from forebay_drivers.fsspec._s3fs import S3Dialect
from forebay_drivers.fsspec._sftp import SftpDialect, tidy
from forebay_drivers.fsspec._shared import Target

__all__ = [
    "CHECKSUMS",
    "AzureDialect",
    "BlockingDriver",
    "Dialect",
    "GcsDialect",
    "HttpDialect",
    "NativeDriver",
    "S3Dialect",
    "SftpDialect",
    "Target",
    "blob_info",
    "check_content_range",
    "download_options",
    "filesystem_class",
    "object_info",
    "resource_checksums",
    "shown_checksums",
    "tidy",
    "translate",
]
