"""The one parser of the ways in which people name a place in Azure Blob Storage."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from forebay._url import URL, parse_url
from forebay.exceptions import InvalidURLError

__all__ = ["AzureTarget", "account_in_host", "is_local", "parse_target"]

_CONTAINER = re.compile(r"\$root|\$web|\$logs|(?=.{3,63}\Z)[a-z0-9](?:-?[a-z0-9])*")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_HOST = re.compile(
    r"(?P<account>[a-z0-9]{3,24}(?:-secondary)?)(?P<zone>\.z\d+)?\.(?:blob|dfs)\."
    r"(?P<cloud>core\.windows\.net|core\.chinacloudapi\.cn|core\.usgovcloudapi\.net|core\.cloudapi\.de"
    r"|storage\.azure\.net)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureTarget:
    """A container and the start of every key in it: literal, without its last slash, empty for the whole container.

    ``account`` and ``endpoint`` (of the account, without a trailing slash) are None where the URL does not name them;
    ``sas`` is the signature that a https URL carries.
    """

    container: str
    prefix: str
    account: str | None = None
    endpoint: str | None = None
    sas: str | None = field(default=None, repr=False)


def parse_target(root: str) -> AzureTarget:
    """Read one of::

        az://CONTAINER/PREFIX                                     azure://… abfs://… abfss://… alike
        abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX     as Hadoop and Spark write it; other schemes too
        https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX    .dfs. and the other clouds' hosts too; ?SAS
        http://127.0.0.1:10000/ACCOUNT/CONTAINER/PREFIX           an emulator
        https://HOST/CONTAINER/PREFIX                             a host of one's own before an account

    What follows the container is the prefix byte for byte; in a http or https URL it is percent-encoded.

    Raises:
        InvalidURLError: There is no account or container by that name, or the URL has a query that is no SAS.
    """
    url = parse_url(root)
    if url.scheme in ("http", "https"):
        return _web(url)
    authority, _, prefix = url.rest.partition("/")
    container, at, host = authority.partition("@")
    if not at:
        if account_in_host(container) is not None:
            raise InvalidURLError(
                f"{url.redacted} names an account where the container stands; write "
                f"{url.scheme}://CONTAINER@{container}/… or https://{container}/CONTAINER/… with backend='azure'"
            )
        return AzureTarget(container=_checked(container, url), prefix=prefix.removesuffix("/"))
    account, endpoint = _account_host("https", host, url)
    return AzureTarget(
        container=_checked(container, url), prefix=prefix.removesuffix("/"), account=account, endpoint=endpoint
    )


def account_in_host(host: str) -> str | None:
    """The account that one of Azure's host names begins with."""
    found = _HOST.fullmatch(host.lower())
    return None if found is None else found["account"].removesuffix("-secondary")


def is_local(host: str) -> bool:
    """Whether an emulator is likely behind ``host``: then the account is the first part of the path."""
    if host in ("localhost", "azurite", "host.docker.internal"):
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _account_host(scheme: str, host: str, url: URL) -> tuple[str, str]:
    """The account and its blob endpoint. ``.dfs.`` is the same account's other API."""
    account = account_in_host(host)
    if account is None:
        raise InvalidURLError(
            f"{url.redacted} names no account of Azure's: CONTAINER@ACCOUNT.dfs.core.windows.net; "
            "for another host give the option endpoint_url"
        )
    return account, f"{scheme}://{host.lower().replace('.dfs.', '.blob.', 1)}"


def _checked(container: str, url: URL) -> str:
    if not _CONTAINER.fullmatch(container):
        raise InvalidURLError(
            f"{url.redacted} names no container that there can be: 3 to 63 lower-case letters, digits, single hyphens"
        )
    return container


def _web(url: URL) -> AzureTarget:
    rest, mark, query = url.rest.partition("?")
    if mark and not {"sig", "sv"} <= set(parse_qs(query)):
        raise InvalidURLError(f"{url.redacted} has a query that is no shared access signature")
    host, _, path = rest.partition("/")
    parts = urlsplit(f"//{host}")
    if parts.username is not None:
        raise InvalidURLError(f"{url.redacted} has a user; the options account_name and account_key say who asks")
    account, endpoint = None, f"{url.scheme}://{host}"
    if account_in_host(host) is not None:
        account, endpoint = _account_host(url.scheme, host, url)
    elif is_local(parts.hostname or ""):
        account, _, path = path.partition("/")
        if not _ACCOUNT.fullmatch(account):
            raise InvalidURLError(f"{url.redacted} names no account: http://HOST:PORT/ACCOUNT/CONTAINER/…")
        endpoint = f"{endpoint}/{account}"
    container, _, prefix = path.partition("/")
    return AzureTarget(
        container=_checked(unquote(container), url),
        prefix=unquote(prefix, errors="strict").removesuffix("/"),
        account=account,
        endpoint=endpoint,
        sas=query or None,
    )
