"""Which of two drivers serves this process, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from forebay.exceptions import ConfigError, ForebayError, ForkedRuntimeError, MissingDependencyError
from forebay_drivers import fork

__all__ = ["Choice", "choose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The driver's name and the reason in words; or, in ``error``, why neither can be used."""

    driver: str
    reason: str
    fallback: bool = False
    version: str | None = None
    error: ForebayError | None = None


def choose(
    options: Mapping[str, object], *, backend: str, sdk: str, hint: str, obstore_no: str | None, fsspec_no: str | None
) -> Choice:
    """Choose by the ``driver`` option, else obstore before fsspec; what the options rule out is given.

    Args:
        options: Of the downloader.
        backend: Its name, for texts.
        sdk: The module (and distribution) with the fsspec file system.
        hint: The command that installs it.
        obstore_no: Why the options need the other driver.
        fsspec_no: Why the options need obstore.
    """
    wanted = options.get("driver")
    if fsspec_no is None and find_spec(sdk) is None:
        fsspec_no = f"{sdk} is not installed; install it with: {hint}"
    if wanted == "fsspec":
        if fsspec_no is None:
            return _taken("fsspec", "asked for with driver='fsspec'", sdk)
        return _none("fsspec", f"the {backend} backend cannot use driver 'fsspec': {fsspec_no}", forked=False)
    forked = fork.unusable_reason()
    no = obstore_no or forked
    if no is None:
        asked = "asked for with driver='obstore'" if wanted == "obstore" else "the default: native and the fastest"
        return _taken("obstore", asked, "obstore")
    if wanted == "obstore" or fsspec_no is not None:
        other = "" if wanted == "obstore" else f"; and the other driver cannot be used: {fsspec_no}"
        return _none("obstore", f"the {backend} backend cannot use obstore: {no}{other}", forked=obstore_no is None)
    return _taken("fsspec", no, sdk, fallback=True)


def _taken(driver: str, reason: str, distribution: str, *, fallback: bool = False) -> Choice:
    try:
        number = version(distribution)
    except PackageNotFoundError:
        number = None
    return Choice(driver=driver, reason=reason, fallback=fallback, version=number)


def _none(driver: str, text: str, *, forked: bool) -> Choice:
    if forked:
        return Choice(driver=driver, reason=text, error=ForkedRuntimeError(text))
    cls = MissingDependencyError if "not installed" in text else ConfigError
    return Choice(driver=driver, reason=text, error=cls(text, option="driver"))
