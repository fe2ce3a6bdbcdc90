"""`GcsDownloader`: objects in Google Cloud Storage and in its emulators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from forebay.exceptions import AuthenticationError, ConfigError
from forebay.types import Access
from forebay_drivers.checksums import GCS_CHECKSUMS
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.driver import Driver
from forebay_drivers.errors import ErrorTable, Subject, failure
from forebay_drivers.facade import TwoDriverDownloader
from forebay_gcs._describe import describe
from forebay_gcs._errors import TABLE
from forebay_gcs._options import OPTION_TYPES, chain_problem, join, machine_has_none, parse_options
from forebay_gcs._target import parse_target

__all__ = ["GcsDownloader"]


class GcsDownloader(TwoDriverDownloader):
    """``gs://BUCKET/PREFIX``, at Google or behind ``endpoint_url``. Keys are taken literally."""

    name: ClassVar[str] = "gcs"
    sdk: ClassVar[str] = "gcsfs"
    sdk_hint: ClassVar[str] = "pip install 'gcsfs>=2025.2'"
    table: ClassVar[ErrorTable] = TABLE
    option_types: ClassVar[Mapping[str, type] | None] = OPTION_TYPES

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(root, options)
        self._target = parse_target(self.root)
        self._settings = parse_options(self.options)

    @classmethod
    def join_options(cls, root: str, layers: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        """The strongest place that says who asks is the only one to do so."""
        return join(layers)

    @classmethod
    def location_options(cls, options: Mapping[str, object]) -> Mapping[str, object]:
        """The endpoint, wherever it was found: a bucket of the same name at another one is another bucket."""
        endpoint = parse_options(options).endpoint
        return {} if endpoint is None else {"endpoint_url": endpoint}

    def make_obstore(self, subject: Callable[[str], Subject], credentials: CredentialSource | None) -> Driver:
        """Make the obstore driver."""
        from forebay_drivers.obstore import ObstoreDriver
        from forebay_gcs._obstore import make_store

        if machine_has_none(self._settings.auth):
            what = "there are no credentials: no option, variable or file gives any, and the machine is not asked"
            raise failure(AuthenticationError, f"{what} (NO_GCE_CHECK); {TABLE.remedy}", subject(""))
        target, settings = self._target, self._settings
        return ObstoreDriver(lambda: make_store(target.bucket, settings, credentials), subject, prefix=target.prefix)

    def make_fsspec(self, subject: Callable[[str], Subject], credentials: CredentialSource | None) -> Driver:
        """Make the gcsfs driver."""
        from forebay_gcs._gcsfs import make_driver

        return make_driver(self._target, self._settings, subject, credentials)

    @classmethod
    def obstore_refusal(cls, options: Mapping[str, object]) -> str | None:
        """Credentials that only Google's own library reads."""
        return chain_problem(parse_options(options).auth)

    @classmethod
    def store_checksums(cls, options: Mapping[str, object], driver: str) -> tuple[str, ...]:
        """What GCS keeps of every object, MD5 of all but composed ones; obstore shows none."""
        return GCS_CHECKSUMS if driver == "fsspec" else ()

    def secrets(self) -> tuple[str, ...]:
        """The token, or what a credentials file holds."""
        return self._settings.auth.secrets()

    def describe_access(self) -> Access:
        """Who asks, where, and which places were looked at for that: for `forebay doctor`."""
        return describe(self.options, self._settings)

    @staticmethod
    def check_credentials(values: Mapping[str, object]) -> None:
        """A callable gives a bearer token."""
        if not isinstance(values.get("token"), str) or not values["token"]:
            raise ConfigError("the credentials callable gave no 'token'", option="credentials")
