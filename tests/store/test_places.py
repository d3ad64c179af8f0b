"""Several places of one store, split into a store and patterns."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import UsageError
from tidelog.store.keys import distinct_prefixes, literal_parts, matches
from tidelog.store.urls import split_glob, split_globs


@pytest.mark.parametrize(
    ("places", "url", "patterns"),
    [
        (["/a/x", "/a/y"], "file:///a", ("x/**", "y/**")),
        (["/a/x", "/b/y/*.json"], "file:///", ("a/x/**", "b/y/*.json")),
        (["/a/x", "/a/x/y/*.csv"], "file:///a/x", ("**", "y/*.csv")),
        (["/a/100%/x", "/a/50%/y"], "file:///a", ("100%/x/**", "50%/y/**")),
        (["/a/b%20/x", "/a/b%20/y"], "file:///a/b%2520", ("x/**", "y/**")),
        (["/a/q?b=c", "/a/z?b=c"], "file:///a", ("q?b=c", "z?b=c")),
        (["s3://b/x", "s3://b/y"], "s3://b", ("x/**", "y/**")),
        (["s3://b/a/x", "s3://b/a/y.json"], "s3://b/a", ("x/**", "y.json/**")),
        (["s3://b/x?region=eu", "s3://b/y?region=eu"], "s3://b?region=eu", ("x/**", "y/**")),
        (["s3://b/a/x%20", "s3://b/a/y"], "s3://b/a", ("x%20/**", "y/**")),
        (["s3://b", "s3://b/y/*"], "s3://b", ("**", "y/*")),
    ],
)
def test_places_of_one_store(places: list[str], url: str, patterns: tuple[str, ...]) -> None:
    """Places of one store become its URL and one pattern each, with special characters."""
    assert split_globs(places) == (url, patterns)


def test_one_place_is_split_as_ever() -> None:
    """A single place is split as before, so that paths of existing sources do not change."""
    for place in ("/a/x", "s3://b/y/*.json", "s3://b/x?region=eu"):
        url, pattern = split_glob(place)
        assert split_globs([place]) == (url, (pattern,))


def test_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    """An existing folder is taken literally, even if its name is a pattern."""
    (tmp_path / "in[1]" / "a").mkdir(parents=True)
    url, patterns = split_globs([str(tmp_path / "in[1]" / "a"), str(tmp_path / "b")])
    assert patterns == ("in[[]1]/a/**", "b/**")
    assert url == f"file://{tmp_path}"
    assert matches(patterns[0], "in[1]/a/x.json")


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (["/a", "s3://b/a"], "different stores"),
        (["s3://a/x", "s3://b/x"], "different stores"),
        (["s3://a/x?region=eu", "s3://a/y"], "different stores"),
        (["/a/x", "/a/y", "/a/x/"], "occurs twice"),
        (["/a", ""], "empty"),
        (["/a", "ftp://x"], "not a known scheme"),
    ],
)
def test_places_that_are_refused(places: list[str], words: str) -> None:
    """Places of different stores, repeated places and wrong places raise UsageError."""
    with pytest.raises(UsageError, match=words):
        split_globs(places)


NAMES = st.lists(st.sampled_from(["a", "b", "%", "c d", "ä"]), max_size=3).map("/".join)


@given(places=st.lists(NAMES, min_size=2, max_size=4, unique=True), name=st.sampled_from("xa%"))
def test_each_file_below_a_place_is_matched(places: list[str], name: str) -> None:
    """A file matches exactly if it is below one of the places."""
    url, patterns = split_globs([f"/nowhere/{one}" for one in places])
    root = url.removeprefix("file://").replace("%25", "%")
    for folder in {*places, "b/zz"}:
        path = f"/nowhere/{folder}/{name}".replace("//", "/")
        if not path.startswith(f"{root}/"):
            continue
        key = path.removeprefix(f"{root}/")
        within = any(f"{path}/".startswith(f"/nowhere/{one}/".replace("//", "/")) for one in places)
        assert any(matches(one, key) for one in patterns) == within, (url, patterns, key)


def test_prefixes_are_listed_once() -> None:
    """Shared prefixes are listed once, because each listing costs."""
    assert distinct_prefixes(["a/b/*.json", "a/**", "c*"]) == ["a", "c"]
    assert distinct_prefixes(["**", "a/**"]) == [""]


def test_parts_that_are_names() -> None:
    """The parts of a pattern before its first wildcard are literal."""
    assert literal_parts("a/b/*.json") == 2
    assert literal_parts("a/b.json") == 2
    assert literal_parts("**") == 0
    assert literal_parts("a*/b") == 0
