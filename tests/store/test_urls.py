"""URLs and patterns of stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.clock import SystemClock
from tidelog.errors import UsageError
from tidelog.store.keys import literal_prefix, matches
from tidelog.store.local.store import LocalStore
from tidelog.store.memory import MemoryStore
from tidelog.store.urls import open_store, split_glob

CLOCK = SystemClock()


def test_memory_is_new_each_time() -> None:
    """Each ``memory://`` URL opens a new store. Callers share it by sharing the object."""
    one, two = (open_store("memory://", clock=CLOCK) for _ in range(2))
    assert isinstance(one, MemoryStore)
    assert one is not two


def test_paths_in_all_their_spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path, an absolute one, a file URL and Spark's form open the same store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = [
        "a lake",
        "./a lake",
        "x/../a lake/",
        "~/a lake",
        f"{tmp_path}/a lake",
        f"file://{tmp_path}/a lake",
        f"file://{tmp_path}/a%20lake",
        f"file://localhost{tmp_path}/a lake",
        f"file:{tmp_path}/a lake",
    ]
    for spelling in spellings:
        store = open_store(spelling, clock=CLOCK)
        assert isinstance(store, LocalStore)
        assert store.url == f"file://{tmp_path}/a lake", spelling


def test_a_stores_url_opens_the_same_store(tmp_path: Path) -> None:
    """The URL of a store opens the same store, also with a percent sign."""
    url = open_store(f"{tmp_path}/100%25 a%20b", clock=CLOCK).url
    assert open_store(url, clock=CLOCK).url == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "the URL is empty"),
        ("file://relative/path", "write file:///some/where"),
        ("file://", "write file:///some/where"),
        ("file:rel/y", "a URL needs two slashes: write file://"),
        ("S3:bucket/x", "a URL needs two slashes: write s3://"),
        ("ftp://host/x", "memory://, file://, s3://, gs://, az://"),
        ("s3:/bucket/x", "two slashes"),
        ("s3://", "has no bucket"),
        ("s3:///prefix", "has no bucket"),
        ("s3://bucket/a//b", "cannot be the key"),
        ("s3://bucket/../b", "cannot be the key"),
        ("s3://bucket?regoin=x", "known parameters: endpoint, region, access_key_id"),
        ("s3://bucket?endpoint=127.0.0.1:80", "an endpoint must be"),
        ("s3://bucket?allow_http=perhaps", "true or false"),
        ("gs://bucket?region=x", "credentials come from the environment"),
        ("a\0b", "NUL"),
        ("\ud800", "lone surrogate"),
        ("s3://bucket/\ud800", "lone surrogate"),
    ],
)
def test_wrong_urls_are_refused_in_words(url: str, words: str) -> None:
    """A wrong URL raises UsageError with the right spelling, before any request."""
    with pytest.raises(UsageError) as refused:
        open_store(url, clock=CLOCK)
    assert words in str(refused.value)


def test_split_glob_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part before the first pattern is the store. An existing file is taken literally."""
    monkeypatch.chdir(tmp_path)
    root = f"file://{tmp_path}"
    (tmp_path / "dir[1]").mkdir()
    (tmp_path / "data[1].csv").touch()
    (tmp_path / "one.csv").touch()
    expected = {
        ".": (root, "**"),
        "in": (f"{root}/in", "**"),
        "in/": (f"{root}/in", "**"),
        "in/*.csv": (f"{root}/in", "*.csv"),
        "in/a*/b/*.csv": (f"{root}/in", "a*/b/*.csv"),
        "in/**": (f"{root}/in", "**"),
        "*.csv": (root, "*.csv"),
        f"{tmp_path}/in/x?.csv": (f"{root}/in", "x?.csv"),
        f"file://{tmp_path}/a%20b/*.csv": (f"{root}/a b", "*.csv"),
        "one.csv": (root, "one.csv"),
        "data[1].csv": (root, "data[[]1].csv"),
        "dir[1]": (f"{root}/dir[1]", "**"),
        "/*": ("file:///", "*"),
    }
    for path, (url, pattern) in expected.items():
        assert split_glob(path) == (url, pattern), path
        assert open_store(url, clock=CLOCK).url == url
    assert matches("data[[]1].csv", "data[1].csv")


def test_split_glob_of_clouds() -> None:
    """The query of a cloud URL stays with the store. A "?" in a name is a pattern."""
    query = "endpoint=http://[::1]:8333&secret_access_key=a/b+c*d?e"
    expected = {
        "s3://b": ("s3://b", "**"),
        "s3://b/": ("s3://b", "**"),
        "s3://b/in": ("s3://b/in", "**"),
        "s3://b/in/": ("s3://b/in", "**"),
        "s3://b/in/*.csv": ("s3://b/in", "*.csv"),
        "s3://b/part-*": ("s3://b", "part-*"),
        "s3://b/in/part-?": ("s3://b/in", "part-?"),
        "s3://b/in/x.csv": ("s3://b/in", "x.csv/**"),
        "s3://b/in/x.csv/": ("s3://b/in/x.csv", "**"),
        f"s3://b/in/*.csv?{query}": (f"s3://b/in?{query}", "*.csv"),
        f"s3://b/in/x?.csv?{query}": (f"s3://b/in?{query}", "x?.csv"),
        f"s3://b?{query}": (f"s3://b?{query}", "**"),
        "gs://b/a/[0-9]*/c": ("gs://b/a", "[0-9]*/c"),
        "az://c/a": ("az://c/a", "**"),
    }
    for url, split in expected.items():
        assert split_glob(url) == split, url
    for url in ("memory://x", "http://x/y", "s3://b*/x"):
        with pytest.raises(UsageError):
            split_glob(url)


def test_patterns() -> None:
    """The two kinds of stars differ only in whether they match a slash."""
    yes = [
        ("**", "a/b/c"),
        ("*.csv", "a.csv"),
        ("*.csv", ".csv"),
        ("a/**", "a/b/c"),
        ("x.csv/**", "x.csv"),
        ("x.csv/**", "x.csv/part-0"),
        ("**/x", "x"),
        ("**/x", "a/b/x"),
        ("a/**/x", "a/x"),
        ("a/**/x", "a/b/c/x"),
        ("a**x", "a/b/x"),
        ("?", "ü"),
        ("[a-c]x", "bx"),
        ("[!a]x", "bx"),
        ("[]]", "]"),
        ("[^a]", "^"),
        ("[a&&b]", "&"),
        ("a[", "a["),
        ("a.b(c)+", "a.b(c)+"),
        ("new\n*", "new\nline"),
        ("\\", "\\"),
    ]
    no = [
        ("*", "a/b"),
        ("?", "/"),
        ("[!a]", "/"),
        ("[!a]x", "ax"),
        ("a/**", "ab"),
        ("**/x", "ax"),
        ("a.csv", "a-csv"),
        ("a", "a/b"),
        ("[^a]", "b"),
    ]
    for pattern, key in yes:
        assert matches(pattern, key), (pattern, key)
    for pattern, key in no:
        assert not matches(pattern, key), (pattern, key)


@given(
    pattern=st.text(alphabet="ab*?[]!/.", min_size=1, max_size=8),
    key=st.text(alphabet="ab/.[]*", min_size=1, max_size=8),
)
def test_what_matches_lies_below_the_literal_prefix(pattern: str, key: str) -> None:
    """A listing of a pattern's literal prefix contains every key that matches."""
    if matches(pattern, key):
        assert key.startswith(literal_prefix(pattern))
