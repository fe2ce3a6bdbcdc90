"""How obstore's HTTP client is set up, the same for every store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from forebay._config import environ
from forebay_drivers.options import Network
from forebay_drivers.proxies import no_proxy_at_all

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

__all__ = ["client_config", "retry_config"]

_NO_LIMIT = timedelta(days=30)


def client_config(network: Network, headers: Mapping[str, str] | None = None) -> ClientConfig:
    """Plain http is allowed: whether it may be used is told by the endpoint's scheme."""
    client: ClientConfig = {
        "allow_http": True,
        "timeout": _NO_LIMIT,  # obstore means the whole body by it; a body that moves may take its time
        "read_timeout": timedelta(seconds=network.timeout),
        "connect_timeout": timedelta(seconds=network.connect_timeout),
        "allow_invalid_certificates": not network.verify_tls,
    }
    if headers:
        client["default_headers"] = dict(headers)
    if network.ca_file is not None:
        client["root_certificate"] = network.ca_file.read_bytes()
    if no_proxy_at_all(environ()):
        client["proxy_url"], client["proxy_excludes"] = "http://unused.invalid", "*,0.0.0.0/0,::/0"
    return client


def retry_config() -> RetryConfig:
    """None: the engine retries, with jitter and a budget; a second retry below it would multiply both."""
    return {"max_retries": 0, "retry_timeout": _NO_LIMIT}
