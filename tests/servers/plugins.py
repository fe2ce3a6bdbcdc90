"""Plugins that are installed as an installer does it, and downloaders to register by hand."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import ClassVar

import forebay
from forebay._registry import _state

__all__ = ["Plain", "Site", "Typed"]

_BACKEND = """
    import sys
    import forebay
    from forebay.types import BackendSpec

    class Lake(forebay.Downloader):
        option_types = {types}
        def download_fileobj(self, key, fileobj):
            fileobj.write(b"from {name}")

    def load():
        {body}
        return Lake

    @forebay.hookimpl
    def forebay_register_backends():
        return [BackendSpec(name="{backend}", schemes={schemes}, load=load, install_hint="pip install the-sdk")]
"""


class Site:
    """A folder on sys.path where plugins are installed the way an installer does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, dist: str, module: str, code: str, *, entry: str = "lake", version: str = "1.0") -> None:
        (self.folder / f"{module}.py").write_text(dedent(code))
        self.describe(dist, module, entry=entry, version=version)

    def describe(self, dist: str, module: str, *, entry: str, version: str = "1.0") -> None:
        info = self.folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[forebay]\n{entry} = {module}\n")
        _state.reset()

    def backend(
        self,
        dist: str,
        module: str,
        schemes: tuple[str, ...] = ("lake",),
        *,
        backend: str = "lake",
        types: str = "None",
        body: str = "pass",
        entry: str = "lake",
    ) -> None:
        code = _BACKEND.format(name=dist, schemes=schemes, backend=backend, types=types, body=body)
        self.install(dist, module, code, entry=entry)


class Typed(forebay.Downloader):
    option_types: ClassVar = {
        "region": str,
        "anonymous": bool,
        "headers": dict,
        "endpoint_url": str,
        "retries": int,
        "credentials": object,
    }

    def download_fileobj(self, key: str, fileobj: object) -> None: ...


class Plain(forebay.Downloader):
    def download_fileobj(self, key: str, fileobj: object) -> None: ...
