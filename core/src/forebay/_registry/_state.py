"""What this process knows: the loaded plugins, and the classes registered by hand. Safe across threads and forks."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from forebay._options import option_types_fault
from forebay._registry._load import Loaded, load_plugins
from forebay._url import is_scheme
from forebay.downloader import Downloader
from forebay.exceptions import ConfigError, PluginConflictError, PluginLoadError

__all__ = [
    "in_process_registrations",
    "loaded",
    "register_downloader",
    "registered",
    "restore_registrations",
    "unregister_downloader",
]

#: Another thread that still imports plugins after this long hangs; waiting for ever would hide it.
LOAD_DEADLINE = 60.0

_lock = threading.RLock()
_loaded: Loaded | None = None
_loading: Loaded | None = None
_registered: dict[str, type[Downloader]] = {}


# A fork waits for a load in another thread: a child would inherit that thread's module locks, which nobody frees.
_forking = threading.local()


def _before_fork() -> None:
    _forking.lock = _lock if _lock.acquire(timeout=LOAD_DEADLINE) else None


def _after_fork_in_parent() -> None:
    if _forking.lock is not None:
        _forking.lock.release()


def _after_fork_in_child() -> None:
    global _lock, _loading
    if _forking.lock is None:
        _loading = None  # of a thread that does not exist here
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


@contextmanager
def _locked() -> Iterator[None]:
    lock = _lock
    if not lock.acquire(timeout=LOAD_DEADLINE):
        raise PluginLoadError(f"another thread has been loading plugins for more than {LOAD_DEADLINE:.0f} s")
    try:
        yield
    finally:
        lock.release()


def loaded() -> Loaded:
    """The plugins, loaded at the first call. A plugin that asks while it is imported sees those before it."""
    global _loaded, _loading
    if _loaded is not None:
        return _loaded
    with _locked():
        if _loaded is None:
            if _loading is not None:  # the same thread again: a plugin's import came back to us
                return _loading
            _loading = Loaded()
            try:
                load_plugins(_loading)
                _loaded = _loading
            finally:
                _loading = None
        return _loaded


def reset() -> None:
    """Forget the plugins, so that the next use looks again; for tests that change what is installed."""
    global _loaded
    with _locked():
        _loaded = None


def registered(scheme: str) -> type[Downloader] | None:
    """The class registered by hand for exactly ``scheme``."""
    return _registered.get(scheme)


def register_downloader(scheme: str, cls: type[Downloader], *, overwrite: bool = False) -> None:
    """Serve ``scheme://`` URLs with ``cls`` in this process.

    Args:
        scheme: Compared exactly and without regard to case. One letter is a Windows drive, not a scheme.
        cls: A `Downloader` subclass. To reach spawned workers it must be importable by name there.
        overwrite: Take the scheme from the plugin or class that serves it now, instead of an error.

    Raises:
        ConfigError: ``scheme`` is no URL scheme, or the class's ``option_types`` cannot be used.
        PluginConflictError: Something serves the scheme already.
        TypeError: ``cls`` is no concrete `Downloader` subclass.
    """
    if not isinstance(scheme, str) or not is_scheme(scheme):
        raise ConfigError(
            f"{scheme!r} is no URL scheme: a letter, then at least one more letter, digit, '+', '-' or '.'",
            option="scheme",
        )
    if not isinstance(cls, type) or not issubclass(cls, Downloader):
        raise TypeError(f"register_downloader({scheme!r}, …) needs a subclass of forebay.Downloader, not {cls!r}")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise TypeError(f"{cls.__name__} cannot serve {scheme}:// yet: it does not implement {missing}")
    if fault := option_types_fault(cls.option_types):
        raise ConfigError(f"{cls.__name__} cannot serve {scheme}://: {fault}", option="option_types")
    name = scheme.lower()
    claims = [] if overwrite else loaded().claims_of(name)
    with _locked():
        taken = [] if overwrite else [str(claim.plugin) for claim in claims]
        if not overwrite and name in _registered:
            there = _registered[name]
            taken.append(f"{there.__module__}.{there.__qualname__}, registered in this process")
        if taken:
            raise PluginConflictError(
                f"cannot register {cls.__module__}.{cls.__qualname__} for {name}://: it is served by "
                f"{' and '.join(taken)}; pass overwrite=True to replace it in this process"
            )
        _registered[name] = cls


def unregister_downloader(scheme: str) -> None:
    """Undo `register_downloader`; a plugin that served the scheme before serves it again.

    Raises:
        ConfigError: Nothing was registered for the scheme in this process.
    """
    with _locked():
        if _registered.pop(scheme.lower(), None) is None:
            raise ConfigError(f"no downloader was registered for {scheme!r} in this process", option="scheme")


def in_process_registrations() -> dict[str, type[Downloader]]:
    """The classes registered by hand, by scheme; travels with a dataset to its workers."""
    with _locked():
        return dict(_registered)


def restore_registrations(mapping: Mapping[str, type[Downloader]]) -> None:
    """Register what another process had registered."""
    with _locked():
        _registered.update(mapping)
