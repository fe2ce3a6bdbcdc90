"""The driver over any obstore store, and obstore's errors in Forebay's terms."""

from forebay_drivers.obstore._client import client_config, retry_config
from forebay_drivers.obstore._driver import ObstoreDriver
from forebay_drivers.obstore._errors import SDK_ERRORS, clean_cause, status_of, translate, without_noise

__all__ = [
    "SDK_ERRORS",
    "ObstoreDriver",
    "clean_cause",
    "client_config",
    "retry_config",
    "status_of",
    "translate",
    "without_noise",
]
