"""`DownloaderConformance`: what the engine relies on in a backend, as tests that a backend's author subclasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from forebay.testing._conformance._aio import AsyncTests
from forebay.testing._conformance._concurrency import ConcurrencyTests
from forebay.testing._conformance._keys import KeyTests
from forebay.testing._conformance._life import LifeTests
from forebay.testing._conformance._ranges import RangeTests
from forebay.testing._conformance._reads import ReadTests
from forebay.testing._conformance._store import Remote
from forebay.testing._conformance._writes import WriteTests

__all__ = ["DownloaderConformance", "Remote"]


class DownloaderConformance(
    ReadTests, RangeTests, KeyTests, AsyncTests, ConcurrencyTests, LifeTests, WriteTests
):  # a plain class: pytest drops abstract fixtures silently
    """Tests that every `Downloader` has to pass.

    A backend's author writes a plain class with a ``remote`` fixture, which yields a `Remote`: a fresh or shared place
    in the store with a client that is not the downloader under test::

        class TestLake(DownloaderConformance):
            @pytest.fixture
            def remote(self, tmp_path):
                yield LakeRemote(tmp_path)

    Where a test cannot hold for a store by its nature, the subclass says so in ``known_gaps``; the test is then skipped
    with that reason. A test that a subclass replaces would look like one that passed, so replacing one is refused.
    """

    #: Name of a test to the reason why the store cannot pass it.
    known_gaps: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        suite = {name for name in dir(DownloaderConformance) if name.startswith("test_")}
        replaced = sorted(name for name in suite if getattr(cls, name) is not getattr(DownloaderConformance, name))
        if replaced:
            raise TypeError(
                f"{cls.__name__} replaces {', '.join(replaced)} of the conformance suite; "
                "name the test and the reason in known_gaps instead"
            )
        if unknown := sorted(set(cls.known_gaps) - suite):
            raise TypeError(f"{cls.__name__}.known_gaps names no test of the conformance suite: {', '.join(unknown)}")
