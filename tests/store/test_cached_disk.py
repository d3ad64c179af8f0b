"""Copies in a directory: each is right or absent for any writers, and their size is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.store.port import Object
from tidelog.store.wrappers.cached_disk import MAGIC, Directory, decode_copy, encode_copy

STORE = "s3://bucket/place"
UNIQUE = count()
OBJECTS = st.builds(Object, st.binary(max_size=300), st.text(max_size=9), st.integers(0, 2**60))
# Like real keys: any text, and bytes that are not valid text.
KEYS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.just("\udc80"), min_size=1, max_size=20
)

PROCESS = """
import sys
from pathlib import Path
from test_cached_disk import body_of, keep
from tidelog.store.wrappers.cached_disk import Directory
from tidelog.store.port import Object

name, directory = sys.argv[1], Directory(Path(sys.argv[2]), store="s", bytes_max=64_000)
print("ready", flush=True)
sys.stdin.readline()
found_count = 0
for number in range(600):
    # All keys need more than the limit; each second key is one of a few, which stay in it.
    key = f"k{number * int(name) % (97 if number % 2 else 13)}"
    found = directory.find(key, now_ns=number)
    if found is None:
        keep(directory, key, Object(body_of(key), "e", 1), now_ns=number, unique=f"{name}-{number}")
    else:
        found_count += 1
        assert found.data == body_of(key)
print(found_count, directory.damaged_count)
"""


def body_of(key: str) -> bytes:
    return key.encode() * 400


def keep(
    directory: Directory, key: str, found: Object, *, now_ns: int = 1, unique: str = ""
) -> None:
    directory.keep(
        key, found, unique=unique or f"u{next(UNIQUE)}", now_ns=now_ns, may_keep=lambda: True
    )


def files_in(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file())


def used_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in files_in(path))


@given(found=OBJECTS, key=KEYS, store=KEYS)
def test_a_copy_is_read_as_it_was_written(found: Object, key: str, store: str) -> None:
    """A copy keeps body, e-tag and time, and is valid for its own store and key only."""
    data = b"".join(encode_copy(store, key, found))

    assert decode_copy(data, store=store, key=key) == found
    assert decode_copy(data, store=store, key=key + "x") is None
    assert decode_copy(data, store=store + "x", key=key) is None


@given(found=OBJECTS, data=st.data())
def test_a_damaged_copy_is_none(found: Object, data: st.DataObject) -> None:
    """A damaged copy counts as absent. It may be cut, extended or changed in one byte."""
    whole = b"".join(encode_copy(STORE, "k", found))
    at = data.draw(st.integers(0, len(whole) - 1), label="at")
    flipped = bytearray(whole)
    flipped[at] ^= data.draw(st.integers(1, 255), label="by")
    for damaged in (bytes(flipped), whole[:at], whole + b"x", b"", MAGIC, b"x" * 100):
        assert decode_copy(damaged, store=STORE, key="k") is None


@given(garbage=st.binary(max_size=200))
def test_garbage_is_no_copy(garbage: bytes) -> None:
    """Any garbage in the directory counts as no copy, also after a valid magic number."""
    assert decode_copy(garbage, store=STORE, key="k") is None
    assert decode_copy(MAGIC + garbage, store=STORE, key="k") is None


def test_a_damaged_file_goes_and_is_counted(tmp_path: Path) -> None:
    """A damaged file is deleted and counted once. Later reads miss without reading it again."""
    directory = Directory(tmp_path, store=STORE, bytes_max=1 << 20)
    keep(directory, "k", Object(b"body", "e", 1))
    (file,) = files_in(tmp_path)
    file.write_bytes(file.read_bytes()[:-1] + b"X")

    assert directory.find("k", now_ns=1) is None
    assert directory.damaged_count == 1
    assert list(files_in(tmp_path)) == []
    assert directory.find("k", now_ns=1) is None
    assert directory.damaged_count == 1


def test_what_was_not_used_for_longest_leaves(tmp_path: Path) -> None:
    """The copy unused for longest leaves first; another process's read counts as use."""
    directory, other = (Directory(tmp_path, store=STORE, bytes_max=40_000) for _ in range(2))
    for number in range(9):
        keep(directory, f"k{number}", Object(bytes(4_000), "e", 1), now_ns=number)
    assert other.find("k0", now_ns=100) is not None
    keep(directory, "k9", Object(bytes(4_000), "e", 1), now_ns=101)

    kept = [n for n in range(10) if directory.find(f"k{n}", now_ns=200) is not None]
    assert 0 in kept
    assert 9 in kept
    assert 1 not in kept
    # The removed copies are the oldest ones, except for the one that was read.
    assert kept[1:] == list(range(kept[1], 10))


@given(
    sizes=st.lists(st.integers(0, 9_000), max_size=60),
    handles_count=st.integers(1, 4),
    data=st.data(),
)
def test_the_bound_holds(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    handles_count: int,
    data: st.DataObject,
) -> None:
    """One process keeps the limit exactly; each further one may exceed it by its writes."""
    path, bytes_max = tmp_path_factory.mktemp("copies"), 32_000
    handles = [Directory(path, store=STORE, bytes_max=bytes_max) for _ in range(handles_count)]
    for number, size_bytes in enumerate(sizes):
        handle = handles[data.draw(st.integers(0, handles_count - 1))]
        keep(handle, f"k{number % 17}", Object(bytes(size_bytes), "e", 1), now_ns=number)

        assert used_bytes(path) <= bytes_max + (handles_count - 1) * bytes_max // 16
    assert not [file for file in files_in(path) if file.parent.name == "tmp"]


def test_a_copy_too_large_is_not_kept(tmp_path: Path) -> None:
    """A copy that is too large is not kept, because it would remove all others."""
    directory = Directory(tmp_path, store=STORE, bytes_max=4_000)
    keep(directory, "large", Object(bytes(1_001), "e", 1))
    keep(directory, "small", Object(bytes(800), "e", 1))

    assert directory.find("large", now_ns=1) is None
    assert directory.find("small", now_ns=1) is not None


def test_what_may_no_longer_be_kept_is_not(tmp_path: Path) -> None:
    """The permission to keep a copy is checked after its write."""
    directory = Directory(tmp_path, store=STORE, bytes_max=1 << 20)
    found = Object(b"body", "e", 1)

    directory.keep("k", found, unique="u", now_ns=1, may_keep=lambda: False)

    assert list(files_in(tmp_path)) == []


def test_left_over_temporary_files_go(tmp_path: Path) -> None:
    """Temporary files of killed processes go after a day; those of running ones stay."""
    (tmp_path / "tmp").mkdir()
    day_ns = 24 * 3_600 * 10**9
    for name, written_ns in (("dead", 0), ("alive", day_ns)):
        (tmp_path / "tmp" / name).write_bytes(b"half")
        os.utime(tmp_path / "tmp" / name, ns=(written_ns, written_ns))
    directory = Directory(tmp_path, store=STORE, bytes_max=1 << 20)

    keep(directory, "k", Object(b"body", "e", 1), now_ns=day_ns + 1)

    assert [file.name for file in (tmp_path / "tmp").iterdir()] == ["alive"]


def test_processes_share_a_directory(tmp_path: Path) -> None:
    """Each process finds whole copies of others while all of them free space."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(name), str(tmp_path)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in (5, 7, 11)
    ]
    # Their imports take unlike times: they begin together.
    assert all(process.stdout and process.stdout.readline() for process in processes)
    told = [process.communicate("go\n")[0].split() for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0]
    assert all(int(found_count) > 0 and damaged == "0" for found_count, damaged in told)
    assert used_bytes(tmp_path) <= 64_000 + 2 * (64_000 / 16 + 2_000)
    assert list((tmp_path / "tmp").iterdir()) == []
