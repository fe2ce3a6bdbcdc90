"""A folder for plugins, a ``forebay.toml``, and a registry that is left as it was found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from servers.plugins import Site

import forebay
from forebay import _registry
from forebay._registry import _state


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for name in [name for name, module in sys.modules.items() if _lies_in(module, tmp_path)]:
        del sys.modules[name]
    _state.reset()


def _lies_in(module: object, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    before = _registry.in_process_registrations()
    yield
    for scheme in set(_registry.in_process_registrations()) - set(before):
        forebay.unregister_downloader(scheme)


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "work" / "forebay.toml"
        path.write_text(dedent(text))
        return path

    return write
