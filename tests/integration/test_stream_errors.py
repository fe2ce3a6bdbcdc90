"""A failed chunk reaches the reader of that chunk, with its cause, at once; everything else goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from servers.datasets import expected_items, put_dataset

import forebay
from forebay import exceptions
from forebay.testing import Fault, FaultServer


@pytest.mark.parametrize("prefetch", [0, 4, None])
def test_a_missing_chunk_is_told_to_its_reader_and_nobody_else(
    server: FaultServer, tmp_path: Path, prefetch: int | None
) -> None:
    """Risk A1: the cause reaches the iterating thread in a second or two, not a time-out after two minutes."""
    names = put_dataset(server, tmp_path)
    server.delete(names[3])
    expected = expected_items()
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", prefetch=prefetch) as ds:
        begin = time.monotonic()
        got: list[object] = []
        with pytest.raises(exceptions.ObjectNotFoundError) as caught:
            got.extend(ds)
        assert time.monotonic() - begin < 30
        assert got == expected[:15]
        assert names[3] in str(caught.value)
        assert "http" in str(caught.value)
        assert caught.value.key == names[3]
        # The dataset stays usable for everything else, and for the chunk once it is there.
        assert ds[-1] == expected[-1]
        assert ds.get_batch([0, 39, 14]) == [expected[0], expected[39], expected[14]]
        server.put(names[3], (tmp_path / "dataset" / names[3]).read_bytes())
        assert ds[17] == expected[17]


def test_a_failing_chunk_does_not_stop_the_prefetch_of_others(server: FaultServer, tmp_path: Path) -> None:
    """Risk A13, A14: later chunks are ready although an earlier one failed."""
    names = put_dataset(server, tmp_path)
    server.delete(names[0])
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", prefetch=4) as ds:
        iterator = iter(ds)
        with pytest.raises(exceptions.ObjectNotFoundError):
            next(iterator)
        server.forget_requests()
        assert ds[39] == expected_items()[39]


def test_on_error_skip_leaves_out_the_chunk_and_counts_it(server: FaultServer, tmp_path: Path) -> None:
    names = put_dataset(server, tmp_path)
    server.delete(names[3])
    expected = expected_items()
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", on_error="skip") as ds:
        assert list(ds) == expected[:15] + expected[20:]
        assert ds.stats().skipped_chunks == 1
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", on_error="skip", shuffle=True) as ds:
        got = sorted(item["index"] for item in ds)
        assert got == [item["index"] for item in expected[:15] + expected[20:]]


def test_a_page_in_place_of_a_chunk_is_refused(server: FaultServer, tmp_path: Path) -> None:
    """Risk P10: a captive portal answers 200 with a page."""
    names = put_dataset(server, tmp_path)
    server.put(names[2], b"<html>Please log in</html>")
    with (
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds,
        pytest.raises((exceptions.IntegrityError, exceptions.IncompleteBodyError), match=names[2]),
    ):
        list(ds)
    assert not list((tmp_path / "cache" / "chunks").rglob("*.tmp"))


def test_a_chunk_of_the_right_size_and_other_bytes_is_refused(server: FaultServer, tmp_path: Path) -> None:
    """Risk N5: one retry for a wrong digest, then both digests in the error."""
    names = put_dataset(server, tmp_path)
    good = server.get(names[1])
    assert good is not None
    server.put(names[1], good[:-1] + b"\xff")
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        with pytest.raises(exceptions.ChecksumMismatchError) as caught:
            list(ds)
        assert caught.value.expected != caught.value.actual
        assert str(caught.value.expected).partition(":")[2] in str(caught.value)
        assert str(caught.value.actual).partition(":")[2] in str(caught.value)
    assert len(server.requests_for(names[1])) == 2


def test_one_corrupt_body_heals_by_itself(server: FaultServer, tmp_path: Path) -> None:
    names = put_dataset(server, tmp_path)
    server.script(names[1], Fault(corrupt_at=100))
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()


def test_a_cut_index_is_an_error_that_says_so(server: FaultServer, tmp_path: Path) -> None:
    """Risk B3: an index without its last byte is refused, not tolerated."""
    put_dataset(server, tmp_path)
    whole = server.get("index.json")
    assert whole is not None
    server.put("index.json", whole[:-1])
    with pytest.raises(exceptions.InvalidIndexError):
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache")


def test_a_wrong_url_names_what_was_looked_for(server: FaultServer, tmp_path: Path) -> None:
    """Risk Q4: a typo in the folder is not a missing index file of unknown place."""
    put_dataset(server, tmp_path)
    with pytest.raises(exceptions.ObjectNotFoundError, match=r"typo.*index\.json"):
        forebay.open_dataset(server.url("typo"), cache_dir=tmp_path / "cache")
    with pytest.raises(exceptions.ObjectNotFoundError, match=r"no folder .*typo"):
        forebay.open_dataset(tmp_path / "typo")
    with pytest.raises(exceptions.DatasetError, match="is a file"):
        forebay.open_dataset(tmp_path / "dataset" / "index.json")


def test_transient_failures_are_retried_and_counted(server: FaultServer, tmp_path: Path) -> None:
    """Risk N1, N4: throttling and cut bodies cost time, not the epoch."""
    names = put_dataset(server, tmp_path)
    server.script(names[0], Fault(status=503), times=2)
    server.script(names[1], Fault(cut=True, after=100), times=1)
    server.script(names[2], Fault(status=429, headers={"Retry-After": "0"}), times=1)
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache") as ds:
        assert list(ds) == expected_items()
        assert ds.stats().retries == 4


def test_an_outage_shows_in_the_numbers_also_after_the_end(server: FaultServer, tmp_path: Path) -> None:
    """Whoever is on call looks at the counters because something failed."""
    names = put_dataset(server, tmp_path)
    server.script(names[2], Fault(status=500), times=None)
    options = {"max_attempts": 3}
    with forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", options=options, on_error="skip") as ds:
        assert len(list(ds)) == 35
    stats = ds.stats()
    assert (stats.retries, stats.requests, stats.skipped_chunks) == (2, 1 + 7 + 3, 1)


def test_an_empty_index_names_both_reasons(server: FaultServer, tmp_path: Path) -> None:
    server.put("index.json", b"")
    with pytest.raises(exceptions.InvalidIndexError, match=r"0 bytes.*wrote nothing"):
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache")


def test_secrets_of_the_url_are_in_no_error(tmp_path: Path) -> None:
    """Risk U1: the signed query of a presigned URL stays out of every text."""
    with FaultServer(require_query="X-Amz-Signature=topsecret") as server:
        names = put_dataset(server, tmp_path)
        server.delete(names[0])
        url = server.url() + "/?X-Amz-Signature=topsecret"
        with forebay.open_dataset(url, cache_dir=tmp_path / "cache") as ds:
            assert "topsecret" not in repr(ds)
            with pytest.raises(exceptions.ObjectNotFoundError) as caught:
                ds[0]
        error: BaseException | None = caught.value
        while error is not None:
            assert "topsecret" not in "".join([str(error), repr(error), *getattr(error, "__notes__", [])])
            error = error.__cause__ or error.__context__
        for path in (tmp_path / "cache").rglob("*"):
            assert "topsecret" not in str(path)
            assert not path.is_file() or b"topsecret" not in path.read_bytes()


FOURTH_KEY = """
import sys
import forebay

class Store(forebay.Downloader):
    seen = 0
    def download_fileobj(self, key, fileobj):
        if key != "index.json":
            Store.seen += 1
            if Store.seen == 4:
                raise LookupError("the tape robot dropped " + key)
        with open(f"{self.root.removeprefix('tape://')}/{key}", "rb") as file:
            fileobj.write(file.read())

forebay.register_downloader("tape", Store)
ds = forebay.open_dataset("tape://" + sys.argv[1], cache_dir=sys.argv[2])
count = 0
try:
    for item in ds:
        count += 1
except LookupError as error:
    print(type(error).__name__, str(error), *error.__notes__)
else:
    print("no error")
"""


def test_a_strangers_error_reaches_the_reader_as_itself_and_the_process_exits(
    server: FaultServer, tmp_path: Path
) -> None:
    """Risk A2, A11: the very error, with URL, key and backend as a note; no thread keeps the process alive."""
    put_dataset(server, tmp_path)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", FOURTH_KEY, str(tmp_path / "dataset"), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert time.monotonic() - begin < 50
    assert done.stdout.startswith("LookupError the tape robot dropped chunk-")
    assert "tape://" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"verify": "digset"}, "verify"),
        ({"on_error": "ignore"}, "on_error"),
        ({"shuffle_window": 0}, "shuffle_window"),
        ({"prefetch": -1}, "prefetch"),
        ({"prefetch": 1.5}, "prefetch"),
        ({"allow_pickle": "no"}, "allow_pickle"),
        ({"shuffle": "no"}, "shuffle"),
        ({"seed": "x"}, "seed"),
        ({"max_cache_bytes": "12 parsecs"}, None),
        ({"options": {"tiemout": 3}}, None),
        ({"format": "litdta"}, None),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_read(
    server: FaultServer, tmp_path: Path, arguments: dict[str, object], option: str | None
) -> None:
    put_dataset(server, tmp_path)
    with pytest.raises((exceptions.ConfigError, exceptions.UnsupportedFormatError)) as caught:
        forebay.open_dataset(server.url(), cache_dir=tmp_path / "cache", **arguments)  # type: ignore[arg-type]
    if option is not None:
        assert option in str(caught.value)
    assert server.requests == []
