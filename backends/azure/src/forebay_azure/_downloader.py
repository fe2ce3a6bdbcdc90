"""`AzureDownloader`: objects in Azure Blob Storage and in its emulators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from forebay._config import log_once
from forebay._url import redact
from forebay.exceptions import AuthenticationError, ConfigError
from forebay.types import Access
from forebay_azure._describe import describe, ended
from forebay_azure._errors import TABLE
from forebay_azure._options import OPTION_TYPES, access, foreign_credentials, join, machine_has_none
from forebay_azure._target import parse_target
from forebay_drivers.credentials import CredentialSource
from forebay_drivers.driver import Driver
from forebay_drivers.errors import ErrorTable, Subject, failure
from forebay_drivers.facade import TwoDriverDownloader

__all__ = ["AzureDownloader"]


class AzureDownloader(TwoDriverDownloader):
    """A container of a storage account, however it is spelled (see `parse_target`). Keys are taken literally."""

    name: ClassVar[str] = "azure"
    sdk: ClassVar[str] = "adlfs"
    sdk_hint: ClassVar[str] = "pip install 'adlfs>=2025.8' 'azure-storage-blob>=12.26'"
    table: ClassVar[ErrorTable] = TABLE
    option_types: ClassVar[Mapping[str, type] | None] = OPTION_TYPES

    def __init__(self, root: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__(root, options)
        self._target = parse_target(self.root)
        self._access = access(self._target, self.options)

    @classmethod
    def join_options(cls, root: str, layers: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        """The URL's signature, else the strongest place that says who asks, is the only one to do so."""
        return join(root, layers)

    @classmethod
    def location_options(cls, options: Mapping[str, object]) -> Mapping[str, object]:
        """Account and endpoint, wherever they were found, and not the key: a renewed one opens the same blobs."""
        try:
            where = access(parse_target("az://container"), options)
        except ConfigError:  # nothing but the URL names an account, and the URL is part of the identity by itself
            return {}
        return {"account_name": where.account, "endpoint_url": where.endpoint}

    def make_obstore(self, subject: Callable[[str], Subject], credentials: CredentialSource | None) -> Driver:
        """Make the obstore driver."""
        from forebay_azure._obstore import make_store
        from forebay_drivers.obstore import ObstoreDriver

        self._check(subject)
        if machine_has_none(self._access.auth):
            what = "there are no credentials: no option or variable gives any, and the machine is not asked"
            raise failure(AuthenticationError, f"{what} (AZURE_TOKEN_CREDENTIALS=dev); {TABLE.remedy}", subject(""))
        where = self._access
        return ObstoreDriver(lambda: make_store(where, credentials), subject, prefix=where.prefix)

    def make_fsspec(self, subject: Callable[[str], Subject], credentials: CredentialSource | None) -> Driver:
        """Make the driver over the SDK that adlfs brings."""
        from forebay_azure._sdk import make_driver

        self._check(subject)
        if self._access.auth.kind == "chain" and self._access.endpoint.startswith("http:"):
            what = "there are no credentials: none are given, and those of the machine are for https endpoints only"
            raise failure(AuthenticationError, f"{what}; {TABLE.remedy}", subject(""))
        return make_driver(self._access, subject, credentials)

    def _check(self, subject: Callable[[str], Subject]) -> None:
        """What is known of the credentials before anything is asked."""
        foreign = foreign_credentials(self._access)
        if foreign is not None:
            log_once(f"{redact(self.root)}: the environment's Azure credentials are passed over: {foreign}")
        over = ended(self._access)
        if over is not None:
            raise failure(AuthenticationError, over, subject(""))

    @classmethod
    def store_checksums(cls, options: Mapping[str, object], driver: str) -> tuple[str, ...]:
        """The MD5 that a blob's writer left; obstore does not show it."""
        return ("md5",) if driver == "fsspec" else ()

    def secrets(self) -> tuple[str, ...]:
        """The key or the signature."""
        return self._access.auth.secrets()

    def describe_access(self) -> Access:
        """Who asks, where, and which places were looked at for that: for `forebay doctor`."""
        return describe(self.options, self._target, self._access)

    @staticmethod
    def check_credentials(values: Mapping[str, object]) -> None:
        """A callable gives an account's key, a shared access signature or a bearer token."""
        given = [name for name in ("account_key", "sas_token", "token") if values.get(name)]
        if len(given) != 1 or not isinstance(values[given[0]], str):
            raise ConfigError(
                "the credentials callable gave none, or not one, of 'account_key', 'sas_token' and 'token'",
                option="credentials",
            )
