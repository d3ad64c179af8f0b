"""Damaged parts: a read raises CorruptionError or returns the right rows, never other rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kit.damage import flip
from kit.keyed_parts import EVER, Parts, Record, encoded, rows_of
from tidelog.errors import CorruptionError, ObjectNotFound, UsageError
from tidelog.keyed.format import directory as directory_format
from tidelog.keyed.format.part import EncodedPart, RunPart
from tidelog.keyed.read import run_objects
from tidelog.keyed.read.part_reader import RunPartReader

RECORDS: list[Record] = [
    (key, 10 * number + place, 1_000 + number, b"value %d of " % number + key)
    for place, (key, count) in enumerate([(b"ant", 3), (b"bee", 24), (b"cat", 2)])
    for number in range(count)
]
Look = Callable[[RunPartReader, RunPart], Awaitable[Any]]


async def by_pages(reader: RunPartReader, part: RunPart) -> Any:
    found = await reader.read_key(part, b"bee", 55, 200, reader="pages")
    return rows_of(found)


async def by_groups(reader: RunPartReader, part: RunPart) -> Any:
    found = await reader.read_key(part, b"bee", 55, 200, reader="groups")
    return rows_of(found)


async def counted(reader: RunPartReader, part: RunPart) -> Any:
    return await reader.count_key(part, b"bee", 55, 200)


async def first(reader: RunPartReader, part: RunPart) -> Any:
    return await reader.first_at(part, 1_007)


async def listed(reader: RunPartReader, part: RunPart) -> Any:
    return [row async for table in reader.keys(part, b"", None) for row in table.to_pylist()]


async def scanned(reader: RunPartReader, part: RunPart) -> Any:
    return [row async for t in reader.scan_keys(part, b"", None, 0, EVER) for row in rows_of(t)]


LOOKS: list[Look] = [by_pages, by_groups, counted, first, listed, scanned]
OF_DATA: list[Look] = [by_pages, by_groups, first, scanned]


def made(path: str = "run/a.parquet") -> EncodedPart:
    return encoded(RECORDS, page_rows=8, path=path)


async def seen(data: bytes, directory: bytes, part: RunPart, look: Look) -> Any:
    """Return the result of a read of these objects, or its CorruptionError."""
    parts = Parts()
    await parts.put(EncodedPart(part=part, data=data, directory=directory))
    try:
        return await look(parts.reader, part)
    except CorruptionError as error:
        return error


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
async def test_a_byte_that_is_wrong_anywhere_in_a_part_never_changes_what_is_read(
    look: Look,
) -> None:
    """A read with any byte changed, also of page headers, is right or raises."""
    whole = made()
    expected = await seen(whole.data, whole.directory, whole.part, look)
    found = [
        await seen(flip(whole.data, place), whole.directory, whole.part, look)
        for place in range(len(whole.data))
    ]

    wrong = [one for one in found if not isinstance(one, CorruptionError)]
    assert all(one == expected for one in wrong)
    if look in OF_DATA:
        assert len(found) - len(wrong) > 100
    else:
        assert len(found) - len(wrong) < 200  # In the sequence column only, or nowhere.


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_byte_that_is_wrong_anywhere_in_a_directory_is_told(
    is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with any byte changed raises, by the checksum of it or of its footer."""
    monkeypatch.setattr(run_objects, "WHOLE_BYTES_MAX", 2**20 if is_whole else 0)
    whole = made()
    looks: list[Look] = [by_pages, listed]
    for look in looks:
        expected = await seen(whole.data, whole.directory, whole.part, look)
        found = [
            await seen(whole.data, flip(whole.directory, place), whole.part, look)
            for place in range(len(whole.directory))
        ]
        errors = [one for one in found if isinstance(one, CorruptionError)]

        # A read in pieces does not fetch the first four bytes.
        assert len(errors) == len(found) - (0 if is_whole else 4)
        assert all(one == expected for one in found if not isinstance(one, CorruptionError))
        assert all("run/a.keys.parquet" in str(one) for one in errors)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_objects_that_are_cut_off_are_told(
    is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of a truncated object raises if it needs a missing byte."""
    monkeypatch.setattr(run_objects, "WHOLE_BYTES_MAX", 2**20 if is_whole else 0)
    whole = made()
    for cut in (0, 1, 7, len(whole.data) // 2, len(whole.data) - 1):
        for look in OF_DATA:
            found = await seen(whole.data[:cut], whole.directory, whole.part, look)
            expected = await seen(whole.data, whole.directory, whole.part, look)
            assert isinstance(found, CorruptionError) or found == expected
            assert cut > 7 or isinstance(found, CorruptionError)
    for cut in (0, 1, len(whole.directory) // 2, len(whole.directory) - 1):
        for look in LOOKS:
            found = await seen(whole.data, whole.directory[:cut], whole.part, look)
            assert isinstance(found, CorruptionError)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
async def test_a_directory_of_another_part_is_told(look: Look) -> None:
    """The directory of another part is intact, so only the names inside reveal it."""
    whole, other = made(), made("run/b.parquet")
    swapped = await seen(whole.data, other.directory, whole.part, look)
    # The directory is refused even if the state has its checksum.
    believed = replace(other.part, path=whole.part.path, directory=whole.part.directory)
    told = await seen(whole.data, other.directory, believed, look)

    assert isinstance(swapped, CorruptionError)
    assert isinstance(told, CorruptionError)
    assert "another part" in str(told)


async def test_another_part_of_the_same_shape_is_told() -> None:
    """Another part's pages are intact, but its footer and groups differ."""
    whole = made()
    others = [(key, sequence, us, value[::-1]) for key, sequence, us, value in RECORDS]
    other = encoded(others, page_rows=8)
    for look in [by_groups, scanned]:
        found = await seen(other.data, whole.directory, whole.part, look)
        assert isinstance(found, CorruptionError)


async def test_an_object_that_is_not_there_is_told_as_that() -> None:
    """A missing object raises ObjectNotFound, because a merge may have replaced the run."""
    whole = made()
    for gone in (whole.part.path, whole.part.directory):
        parts = Parts()
        await parts.put(whole)
        del parts.inner.objects[gone]
        with pytest.raises(ObjectNotFound):
            await by_pages(parts.reader, whole.part)


async def test_what_was_damaged_and_is_mended_is_read() -> None:
    """After a repair, a read succeeds, because the cache keeps no error."""
    whole = made()
    parts = Parts()
    await parts.put(replace(whole, directory=flip(whole.directory, 40)))
    with pytest.raises(CorruptionError):
        await by_pages(parts.reader, whole.part)

    await parts.put(whole)

    assert len(await by_pages(parts.reader, whole.part)) == 14


async def test_a_directory_of_a_newer_version_is_not_called_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older tidelog must advise an upgrade: a restored object would be the same object."""
    parts = Parts()
    with monkeypatch.context() as newer:
        newer.setattr(directory_format, "FORMAT", directory_format.FORMAT + 1)
        part = await parts.put(made())

    with pytest.raises(UsageError, match="upgrade tidelog"):
        await counted(parts.reader, part)
