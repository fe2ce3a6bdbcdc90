"""The identity of a machine in AWS: its metadata service is asked once a process, for all buckets and drivers.

Both SDKs ask once a client, and take a service that is too busy for "no credentials" (botocore), or for the bucket
(obstore). Here its refusals pass like those of a store: the engine tries again, with
pauses that grow and differ.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from forebay._config import environ
from forebay._url import redact
from forebay.exceptions import AuthenticationError, ConnectionFailedError, StorageTimeoutError, ThrottledError
from forebay_drivers.credentials import CredentialSource

__all__ = ["machine_source"]

_IPV4, _IPV6 = "http://169.254.169.254", "http://[fd00:ec2::254]"
_TOKEN, _ROLES = "/latest/api/token", "/latest/meta-data/iam/security-credentials/"
_LIFE = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
#: Seconds; the service is one hop away, and where there is none its address answers nothing.
_TIMEOUT = 2.0
_NONE = "there are no credentials: no option, variable or profile gives any, and"
_REMEDY = "see the options access_key_id, profile, credentials and anonymous, and `forebay doctor`"

# One for each process, whatever it inherited.
_sources: dict[tuple[int, str], CredentialSource] = {}


def machine_source(endpoint: str | None) -> CredentialSource:
    """The machine's credentials in this process, renewed before they end."""
    if endpoint is None:
        endpoint = _IPV6 if environ().get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "").lower() == "ipv6" else _IPV4
    name = (os.getpid(), endpoint)
    # setdefault is atomic, so no lock can be inherited locked by a child.
    return _sources.get(name) or _sources.setdefault(name, CredentialSource(_Machine(endpoint), trusted=True))


class _Machine:
    """Asks for the keys of the machine's role, with a token of the service's second version where it has that."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._where = f"this machine's metadata service ({redact(endpoint)})"

    def __call__(self) -> Mapping[str, object]:
        token = self._token()
        headers = {} if token is None else {"X-aws-ec2-metadata-token": token}
        role = self._get(_ROLES, headers).strip().partition("\n")[0]
        try:
            found = json.loads(self._get(_ROLES + quote(role), headers)) if role else {}
            keys = {"access_key_id": found["AccessKeyId"], "secret_access_key": found["SecretAccessKey"]}
        except (ValueError, KeyError, TypeError):
            why = f"{_NONE} {self._where} has none for it, as if it had no role; {_REMEDY}"
            raise AuthenticationError(why) from None
        return {**keys, "session_token": found.get("Token"), "expires_at": found.get("Expiration")}

    def _token(self) -> str | None:
        try:
            status, body = self._ask("PUT", _TOKEN, _LIFE)
        except StorageTimeoutError:
            status, body = 0, ""  # in a container one hop further such an answer gets lost
        if status == 200 or environ().get("AWS_EC2_METADATA_V1_DISABLED", "").lower() == "true":
            return body
        return None

    def _get(self, path: str, headers: Mapping[str, str]) -> str:
        status, body = self._ask("GET", path, headers)
        if status != 200:
            raise AuthenticationError(f"{_NONE} {self._where} answered {status}; {_REMEDY}")
        return body

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        parts = urlsplit(self._endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
        try:
            self._connect(connection)
            connection.request(method, parts.path.rstrip("/") + path, headers=dict(headers))
            response = connection.getresponse()
            status, body = response.status, response.read().decode()
        except TimeoutError:
            raise StorageTimeoutError(f"{self._where} did not answer within {_TIMEOUT:g} s") from None
        except (OSError, http.client.HTTPException) as exc:
            raise ConnectionFailedError(f"{self._where} hung up ({type(exc).__name__})") from exc
        finally:
            connection.close()
        if status == 429 or status >= 500:
            raise ThrottledError(f"{self._where} asks for fewer requests: it answered {status}")
        return status, body

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        try:
            connection.connect()
        except OSError:
            raise AuthenticationError(f"{_NONE} {self._where} cannot be reached; {_REMEDY}") from None
