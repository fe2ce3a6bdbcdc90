"""URLs are read, joined, split, compared and redacted without losing or inventing a byte."""

from __future__ import annotations

import ntpath
import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay._url import URL, identity, join_url, local_path, parse_url, redact, split_object, trim_root
from forebay.exceptions import InvalidURLError

ODD_KEYS = [
    "a#1.bin",
    "a#2.bin",
    "a?b",
    "100%",
    "a%20b",
    "ä/日本",
    "a@b",
    "a+b c=d",
    "x[1].bin",
    "/a",
    "//a",
    "a/",
    "a//b",
]


@pytest.mark.parametrize(
    ("text", "scheme", "rest"),
    [
        ("s3://bucket/a#b?c%20d", "s3", "bucket/a#b?c%20d"),
        ("S3://Bucket/Key", "s3", "Bucket/Key"),
        ("s3x://b/k", "s3x", "b/k"),
        ("profile://x", "profile", "x"),
        ("fsspec+ftp://h/x", "fsspec+ftp", "h/x"),
        ("file:///tmp/a%20b", "file", "/tmp/a%20b"),
        ("FILE:/tmp/x", "file", "/tmp/x"),
        ("/data/a%20b", "file", "/data/a%20b"),
        ("data/x", "file", "data/x"),
        ("/data/my-local:x/y", "file", "/data/my-local:x/y"),  # O12
        ("my-local:x/y", "file", "my-local:x/y"),  # O12
        ("/odd/s3://x", "file", "/odd/s3://x"),
        ("D:/x", "file", "D:/x"),  # T2
        ("D:\\x\\y", "file", "D:\\x\\y"),  # T2
        ("d://x", "file", "d://x"),  # T2
        ("abfss://container@account.dfs.core.windows.net/k", "abfss", "container@account.dfs.core.windows.net/k"),
    ],
)
def test_t2_o12_scheme_is_told_from_path(text: str, scheme: str, rest: str) -> None:
    url = parse_url(text)
    assert (url.scheme, url.rest) == (scheme, rest)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("s3:/bucket/k", "one slash"),
        ("my_lake://x", "scheme"),
        ("://x", "scheme"),
        ("s3://", "bucket"),
        ("s3:///key", "bucket"),
        ("http://", "host"),
        ("http:///x", "host"),
        ("http://:80/x", "host"),
        ("https://h/a b", "space"),
        ("https://h/a\r\nX-Evil: 1", "control"),
        ("https://h/a#1.bin", "%23"),
    ],
)
def test_unreadable_url_is_an_error_and_never_a_local_path(text: str, word: str) -> None:
    with pytest.raises(InvalidURLError, match=word):
        parse_url(text)


def test_path_object_is_a_path_unless_it_was_a_url() -> None:
    assert parse_url(Path("/data/a%20b")).bare
    with pytest.raises(InvalidURLError, match="pathlib drops a slash"):
        parse_url(PurePosixPath("s3://bucket/k"))


def test_o3_only_file_urls_are_percent_decoded() -> None:
    assert local_path(parse_url("file:///tmp/a%20b%23")) == Path("/tmp/a b#")
    assert local_path(parse_url("file://localhost/tmp/100%")) == Path("/tmp/100%")
    assert local_path(parse_url("file:///tmp/a#1?x")) == Path("/tmp/a#1?x")
    assert local_path(parse_url("/tmp/a%20b")) == Path("/tmp/a%20b")
    assert os.fsencode(local_path(parse_url("file:///tmp/%ff"))) == b"/tmp/\xff"


@pytest.mark.parametrize("text", ["file://server/share/x", "file://", "file://relative", "file:///a%00b"])
def test_file_url_that_is_no_local_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidURLError):
        local_path(parse_url(text))


@pytest.mark.parametrize("path", ["/tmp/a b#c?d%20e[1]", "/tmp/ä+=&"])
def test_as_uri_round_trips(path: str) -> None:
    assert local_path(parse_url(Path(path).as_uri())) == Path(path)


@pytest.mark.parametrize("key", ODD_KEYS)
def test_o1_to_o6_object_store_keys_stay_byte_for_byte(key: str) -> None:
    assert split_object(parse_url(f"s3://bucket/{key}")) == ("s3://bucket", key)
    assert join_url("s3://bucket", key) == f"s3://bucket/{key}"


@pytest.mark.parametrize(
    "root", ["s3://b/p", "http://h/p", "http://h/p?sig=1", "file:///p", "/p", "lake://", "memory://x"]
)
def test_o1_join_is_injective(root: str) -> None:
    joined = [join_url(root, key) for key in ODD_KEYS]
    assert len(set(joined)) == len(ODD_KEYS)


@given(
    st.sampled_from(["http://h/p", "http://h/p?q=1", "file:///p", "s3://b"]), st.text(min_size=1), st.text(min_size=1)
)
def test_o1_join_never_makes_one_url_of_two_keys(root: str, one: str, two: str) -> None:
    assert (join_url(root, one) == join_url(root, two)) == (one == two)


def test_join_keeps_query_last_and_encodes_once() -> None:
    assert join_url("http://h/p/?sig=a/b", "x y#/%20") == "http://h/p/x%20y%23/%2520?sig=a/b"
    assert join_url("file:///p", "a%20b") == "file:///p/a%2520b"
    assert join_url("/", "x") == "/x"
    assert join_url("lake://", "a/b") == "lake:///a/b"
    assert join_url("http://h/p?q", "") == "http://h/p?q"


def test_keys_are_joined_with_a_slash_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Risk T1: a backslash is a character of a key and nothing else."""
    monkeypatch.setattr(os, "path", ntpath)
    monkeypatch.setattr(os, "sep", "\\")
    assert join_url("s3://b/p", "a/b") == "s3://b/p/a/b"
    assert join_url("s3://b/p", "a\\b") == "s3://b/p/a\\b"
    assert join_url("http://h/p", "a\\b/c") == "http://h/p/a%5Cb/c"
    assert split_object(parse_url("s3://b/p/a\\b")) == ("s3://b", "p/a\\b")


def test_split_object() -> None:
    assert split_object(parse_url("http://h/a/b?sig=1")) == ("http://h/a/b?sig=1", "")
    assert split_object(parse_url("/data/x/a%20b")) == ("/data/x", "a%20b")
    assert split_object(parse_url("file:///data/a%20b")) == ("/data", "a b")
    assert split_object(parse_url("fsspec+file:///x/y")) == ("fsspec+file://", "x/y")
    assert join_url("fsspec+file://", "x/y") == "fsspec+file:///x/y"


@pytest.mark.parametrize("text", ["s3://bucket", "s3://bucket/", "/data/", "/", "file:///", "data/.."])
def test_split_of_a_folder_is_an_error(text: str) -> None:
    with pytest.raises(InvalidURLError):
        split_object(parse_url(text))


@pytest.mark.parametrize(
    ("root", "trimmed"),
    [
        ("s3://b/p/", "s3://b/p"),
        ("s3://b/what?/", "s3://b/what?"),
        ("http://h/p/?next=/", "http://h/p/?next=/"),
        ("lake://", "lake://"),
        ("file:///", "file:///"),
        ("/", "/"),
        ("/data/", "/data"),
        ("x", "x"),
    ],
)
def test_root_without_trailing_slash_is_still_the_root(root: str, trimmed: str) -> None:
    assert trim_root(root) == trimmed


SIGNED = {
    "aws4": "X-Amz-Algorithm=AWS4&X-Amz-Credential=AK%2F{n}&X-Amz-Date=2{n}&X-Amz-Expires=60&X-Amz-Signature={n}",
    "aws2": "AWSAccessKeyId=AK&Expires={n}&Signature={n}",
    "google4": "X-Goog-Algorithm=G&X-Goog-Credential=c{n}&X-Goog-Date={n}&X-Goog-Signature={n}",
    "google2": "GoogleAccessId=x&Expires={n}&Signature={n}",
    "cloudfront": "Expires={n}&Signature={n}&Key-Pair-Id=K",
    "azure": "sv=2022-11-02&st={n}&se={n}&sr=b&sp=r&sig={n}%3D",
}


@pytest.mark.parametrize("query", SIGNED.values(), ids=SIGNED)
def test_o9_new_signature_is_the_same_identity(query: str) -> None:
    one = identity("https://h/k?versionId=7&" + query.format(n=1))
    two = identity("https://h/k?versionId=7&" + query.format(n=2))
    assert one == two == "https://h/k?versionId=7"
    assert identity("https://h/k?" + query.format(n=1)) == "https://h/k"
    assert identity("https://h/k?versionId=8&" + query.format(n=1)) != one


def test_o9_what_only_looks_like_a_signature_is_kept() -> None:
    assert identity("https://h/k?Expires=5&page=2") == "https://h/k?Expires=5&page=2"
    assert identity("https://h/k?sp=1&st=2") == "https://h/k?sp=1&st=2"
    assert identity("s3://b/k?X-Amz-Signature=1") == "s3://b/k?X-Amz-Signature=1"


def test_identity_of_a_relative_path_holds_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert identity("data") == identity(str(tmp_path / "data")) == identity((tmp_path / "data").as_uri())
    assert identity("a%20b") != identity("a b")


SECRET = "s3cr3tvalue"


@pytest.mark.parametrize(
    "text",
    [
        f"https://h/k?X-Amz-Signature={SECRET}",
        f"https://h/k?anything={SECRET}",
        f"https://user:{SECRET}@h/k",
        f"https://{SECRET}@h/k",
        f"https://user:pa/{SECRET}@h/k",
        f"https://user:pa?{SECRET}@h/k",
        f"ftp://user:{SECRET}@h/k",
        f"s3://key:{SECRET}@bucket/k",
        f"s3://bucket/k?secret_access_key={SECRET}",
        f"https://h/k#access_token={SECRET}",
        f"GET /k?X-Goog-Signature={SECRET}&x=1",
        f"AccountName=x;AccountKey={SECRET};",
        f"lake://h/k?custom={SECRET}",
        f"https://h/k?a='q'&custom={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"{{'Authorization': 'Basic {SECRET}'}}",
    ],
)
def test_u1_no_secret_is_shown(text: str) -> None:
    for whole in (text, f"failed: GET {text} gave 403", f"error in '{text}', again", f'("{text}")'):
        assert SECRET not in redact(whole)
    if "://" in text and "access_token" not in text:
        url = parse_url(text)
        assert SECRET not in repr(url)
        assert SECRET not in url.redacted


def test_u1_what_people_need_is_kept() -> None:
    text = "GET 'https://h:8080/a/b.bin?sig=1' gave 403, x-amz-request-id=ABC123, see s3://bucket/a#1?b."
    assert redact(text) == "GET 'https://h:8080/a/b.bin?***' gave 403, x-amz-request-id=ABC123, see s3://bucket/a#1?b."
    assert (
        redact("abfss://container@account.dfs.core.windows.net/k") == "abfss://container@account.dfs.core.windows.net/k"
    )
    assert redact("http://[::1]:80/a@b") == "http://[::1]:80/a@b"


def test_str_is_the_whole_text() -> None:
    assert str(parse_url("HTTP://u:p@h/k?q=1")) == "http://u:p@h/k?q=1"
    assert str(parse_url("D:/x")) == "D:/x"
    assert str(URL("s3", "b/k")) == "s3://b/k"
