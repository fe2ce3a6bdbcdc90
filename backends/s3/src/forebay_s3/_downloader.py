"""`S3Downloader`: objects in S3 and in what speaks its language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from forebay._url import redact
from forebay.exceptions import AuthenticationError, ConfigError, InvalidURLError
from forebay.types import Access
from forebay_drivers.checksums import S3_CHECKSUMS
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.driver import Driver
from forebay_drivers.errors import ErrorTable, Subject, failure
from forebay_drivers.facade import TwoDriverDownloader, split_root
from forebay_s3._describe import describe
from forebay_s3._errors import TABLE
from forebay_s3._options import OPTION_TYPES, S3Options, join, parse_options

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
        if self.root.lower().startswith(("http://", "https://")):
            raise InvalidURLError(
                f"{redact(self.root)} names no bucket to the s3 backend: write s3://BUCKET/KEY, and the"
                " server as the option endpoint_url"
            )
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
    def join_options(cls, root: str, layers: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        """The strongest place that says who asks is the only one to do so; a session token belongs to its key."""
        return join(layers)

    @classmethod
    def location_options(cls, options: Mapping[str, object]) -> Mapping[str, object]:
        """The endpoint, wherever it was found: a bucket of the same name at another one is another bucket."""
        endpoint = parse_options(options).endpoint_url
        return {} if endpoint is None else {"endpoint_url": endpoint}

    @classmethod
    def store_checksums(cls, options: Mapping[str, object], driver: str) -> tuple[str, ...]:
        """S3's own, where it is asked for them; obstore shows none."""
        asked = driver == "fsspec" and parse_options(options).asks_checksums
        return S3_CHECKSUMS if asked else ()

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
        return () if keys is None else (keys.access_key_id, keys.secret_access_key, keys.session_token or "")

    def asks_callable(self) -> bool:
        """Not where another option is the one."""
        return self._settings.callable_credentials

    def describe_access(self) -> Access:
        """Who asks, where, and which places were looked at for that: for `forebay doctor`."""
        return describe(self.options, self._settings)

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
