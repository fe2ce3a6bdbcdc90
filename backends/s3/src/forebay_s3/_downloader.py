"""`S3Downloader`: objects in S3 and in what speaks its language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from forebay.exceptions import AuthenticationError, ConfigError
from forebay.types import Capabilities
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.driver import Driver
from forebay_drivers.errors import ErrorTable, Subject, failure
from forebay_drivers.facade import TwoDriverDownloader, split_root
from forebay_s3._errors import TABLE
from forebay_s3._options import OPTION_TYPES, S3Options, parse_options

__all__ = ["S3Downloader"]


class S3Downloader(TwoDriverDownloader):
    """``s3://BUCKET/PREFIX``, on AWS or behind ``endpoint_url``. Keys are taken literally."""

    name: ClassVar[str] = "s3"
    sdk: ClassVar[str] = "s3fs"
    sdk_hint: ClassVar[str] = "pip install 's3fs>=2025.2'"
    table: ClassVar[ErrorTable] = TABLE
    option_types: ClassVar[Mapping[str, type] | None] = OPTION_TYPES

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(root, options)
        self._bucket, self._prefix = split_root(self.root)
        self._settings: S3Options = parse_options(self.options, self._bucket)

    def make_obstore(self, subject: Callable[[str], Subject], credentials: CredentialSource | None) -> Driver:
        """Make the obstore driver."""
        from forebay_drivers.obstore import ObstoreDriver
        from forebay_s3._obstore import make_store

        settings = self._settings
        if settings.machine_has_none:
            what = "there are no credentials: no option, variable or profile gives any, and the machine is not asked"
            raise failure(AuthenticationError, f"{what} (AWS_EC2_METADATA_DISABLED); {TABLE.remedy}", subject(""))
        return ObstoreDriver(lambda: make_store(self._bucket, settings, credentials), subject, prefix=self._prefix)

    def make_fsspec(self, subject: Callable[[str], Subject], credentials: CredentialSource | None) -> Driver:
        """Make the fsspec driver."""
        from forebay_s3._s3fs import make_driver

        return make_driver(self._bucket, self._prefix, self._settings, subject, credentials)

    @classmethod
    def location_options(cls, options: Mapping[str, object]) -> Mapping[str, object]:
        """The endpoint, wherever it was found: a bucket of the same name at another one is another bucket."""
        endpoint = parse_options(options).endpoint_url
        return {} if endpoint is None else {"endpoint_url": endpoint}

    @classmethod
    def probe_driver(cls, options: Mapping[str, object]) -> Capabilities:
        """Which driver serves this process, and why. The SDK checks checksums, where S3 itself gives them."""
        said = super().probe_driver(options)
        checked = said.driver == "fsspec" and parse_options(options).aws
        return replace(said, checksums=("crc32", "sha1", "sha256")) if checked else said

    @classmethod
    def obstore_refusal(cls, options: Mapping[str, object]) -> str | None:
        """Credentials that only the AWS SDK fetches."""
        settings = parse_options(options)
        if settings.fetched_by is not None:
            return f"the AWS profile {settings.profile!r} uses {settings.fetched_by}, which only the AWS SDK resolves"
        return None

    def secrets(self) -> tuple[str, ...]:
        """The keys in use."""
        keys = self._settings.keys
        given = () if keys is None else (keys.access_key_id, keys.secret_access_key, keys.session_token or "")
        return (*given, *super().secrets())

    def asks_callable(self) -> bool:
        """Not where another option is the one."""
        return self._settings.callable_credentials

    def describe_access(self) -> str:
        """Who asks, and where, in words without a secret: for `forebay doctor`."""
        settings = self._settings
        if settings.anonymous:
            who = "nobody (anonymous)"
        elif settings.callable_credentials:
            who = "the credentials callable"
        elif settings.keys is not None:
            who = "an access key" + (" with a session token" if settings.keys.session_token else "")
        elif settings.fetched_by is not None:
            who = f"the profile {settings.profile!r} through {settings.fetched_by}"
        else:
            who = "the SDK's own chain (web identity, container, the machine's identity): no key was found"
        where = settings.endpoint_url or f"AWS, region {settings.region}"
        return f"{who}, at {where} ({'path' if settings.path_style else 'virtual-host'} style)"

    @staticmethod
    def check_credentials(values: Mapping[str, object]) -> None:
        """A callable gives at least a pair of keys."""
        for name in ("access_key_id", "secret_access_key"):
            if not isinstance(values.get(name), str) or not values[name]:
                raise ConfigError(f"the credentials callable gave no {name!r}", option="credentials")

    def _source(self) -> CredentialSource | None:
        if not self._settings.asks_machine:
            return super()._source()
        from forebay_s3._machine import machine_source

        return machine_source(self._settings.metadata_endpoint)
