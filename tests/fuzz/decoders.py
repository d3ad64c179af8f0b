"""Decoders of stored bytes, except those of logs: changed bytes give a value or a named error.

``PYTHONPATH=tests python -m fuzz.decoders --seed N --cases M`` runs M cases of each decoder, in a
process with little memory. It prints a line before each case, so that a crash names its case.

Checksums are computed again after a change, as a hostile writer can do. Otherwise no change would
get past them.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import xxhash

from fuzz.byte_changes import change_bytes
from fuzz.keyed_decoders import keyed_decoders
from kit.shard_tables import schema_of, table_of
from tidelog.collection.catalog.catalog import CollectionInfo, read_catalog, row_of
from tidelog.collection.formats.packed.packed import decode_packed
from tidelog.collection.ingest.health import Health, decode_health, encode_health
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import decode_range
from tidelog.consensus import group_object
from tidelog.consensus import object_consensus as objects
from tidelog.consensus.group_object import decode_group
from tidelog.consensus.object_consensus import EMPTY, append_record, decode_object, decode_spill
from tidelog.core.frontier import Frontier
from tidelog.core.ids import SeqNo, ShardId
from tidelog.errors import InvariantError, TidelogError
from tidelog.location.marker import Marker, MoveInProgress, encode_marker, read_marker
from tidelog.machine.fence import MoveFence, encode_fence, fence_of
from tidelog.machine.record import (
    Record,
    RollupBody,
    decode_record,
    decode_rollup,
    describe_rollup,
    encode_record,
    encode_rollup,
)
from tidelog.persist.format.part import Part, decode_bounds, decode_part, encode_part, part_path
from tidelog.persist.format.schema import decode_schema
from tidelog.persist.maintenance.scrub import check_part
from tidelog.persist.states.batch import make_batch
from tidelog.persist.states.state import Diff, Hold, ShardLanguage, apply_diff
from tidelog.persist.states.transition import CompareAndAppend, decide_append
from tidelog.store.port import Object
from tidelog.store.wrappers.cached_disk import decode_copy, encode_copy
from tidelog.verify.checker import decode_cut, encode_cut, first_cut

MEMORY_BYTES: Final = 4_000_000_000  # Address space: DuckDB and Arrow reserve most of it.
SCHEMA: Final = schema_of(["string", "int64"], keys=1)
LANGUAGE: Final = ShardLanguage("s")
_TYPES: Final[dict[str, pa.DataType]] = {"k": pa.string(), "n": pa.int64()}
_COLUMNS: Final = pa.schema(_TYPES)
_ROWS: Final = table_of(SCHEMA, [(f"k{n}", n, n, 1) for n in range(50)])


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder: bytes that it reads, how to change them, and the call."""

    whole: bytes
    decode: Callable[[bytes], object]
    is_msgpack: bool = False


def _diff() -> Diff:
    part, _ = _part(inline=True)
    other, _ = _part(inline=False)
    command = CompareAndAppend(
        schema=SCHEMA.encoded,
        parts=[part, other],
        expected_upper=Frontier.at(0),
        upper=Frontier.at(50),
        token=("w", 1),
        named=True,
        holds={"history": Frontier.at(0)},
    )
    found = decide_append(LANGUAGE.initial(), command).diff
    assert found is not None
    return found


def _part(*, inline: bool) -> tuple[Part, bytes]:
    path = part_path(ShardId("s"), 0, "x")
    rows = _ROWS.slice(0, 5) if inline else _ROWS
    part, data = encode_part(rows, SCHEMA, path=path, is_sorted=True, inline=inline)
    return part, data if data is not None else part.inline or b""


def _of_part(*, inline: bool) -> Decoder:
    part, whole = _part(inline=inline)

    def decode(data: bytes) -> object:
        told = msgspec.structs.replace(
            part,
            inline=data if inline else None,
            # The checksum of Parquet stays. On forged bytes, Arrow's reader may take any time and
            # any amount of memory.
            size_bytes=len(data) if inline else part.size_bytes,
            xxh3=xxhash.xxh3_128_digest(data) if inline else part.xxh3,
        )
        found = decode_part(told, data, SCHEMA)
        batch = make_batch([told], lower=0, upper=50)
        # A scrub checks values that no read checks, such as the UTF-8 of texts.
        return list(check_part(told, found, SCHEMA, batch))

    return Decoder(whole, decode)


def _state(data: bytes) -> object:
    state = LANGUAGE.decode_state(data)
    parts = [part for batch in state.batches for part in batch.parts]
    return LANGUAGE.encode_state(state), state.holds, parts


def _changed(data: bytes) -> object:
    diff = LANGUAGE.decode_diff(data)
    return LANGUAGE.encode_diff(diff), LANGUAGE.vanished(diff)


def _rollup(data: bytes) -> object:
    rollup = describe_rollup(SeqNo(9), "shard/s/rollup/9-x", data)
    return LANGUAGE.decode_state(decode_rollup(rollup, data).state)


def _catalog(data: bytes) -> object:
    return read_catalog([("collection", "c", data.decode(errors="replace"))])


def _group_decoders(packed: bytes) -> dict[str, Decoder]:
    name = f"g{'1' * 32}"
    key = f"{name}-{'2' * 12}"
    members = {key: group_object.Member(records=(group_object.MemberRecord(1, packed),))}
    group = msgspec.msgpack.encode(group_object.GroupObject(1, "s", 1, ("s",), members))
    moved = msgspec.msgpack.encode({key: members[key].records})
    return {
        "group": Decoder(group, lambda d: decode_group(objects.seal(d), group=name), True),
        "group's spill": Decoder(
            moved, lambda d: group_object.decode_spill(objects.seal(d), path="p"), True
        ),
    }


def _decoders() -> dict[str, Decoder]:
    diff = _diff()
    state = apply_diff(LANGUAGE.initial(), diff)
    record = Record(rollup=describe_rollup(SeqNo(3), "p", b"x"), floor=3, diffs=(b"d", b"e"))
    packed = encode_record(record)
    contents = EMPTY
    for number in range(5):
        contents = append_record(contents, packed, write_id=f"w{number}")
    body = msgspec.msgpack.encode(contents)
    spilled = msgspec.msgpack.encode(contents.records)
    inline, _ = _part(inline=True)
    mark = Marker(
        format=1, created_us=1, consensus="sqlite", consensus_at="sqlite:/x", id="i",
        moves=2, moving=MoveInProgress("m", "store"), stamp="s",
    )  # fmt: skip
    info = CollectionInfo(name="c", active="r", renditions=("r",), created_us=1)
    health = Health(
        engine="local", started_us=1, updated_us=2, running=True, upper=3, ticks=1, rows=2, late=0,
        bad=0, waiting={"a": "b"},
    )  # fmt: skip
    fence = encode_fence(packed, MoveFence("m", "store"), at_us=1, key="k", seqno=SeqNo(4))
    head, tail = encode_copy("memory://x", "k", Object(b"data", "e", 1))
    hold = Hold(since=5, lease_us=9, seqno=3, purpose="p")
    batch = make_batch([inline], lower=0, upper=50)

    def decoded(format: str) -> Callable[[bytes], object]:
        def decode(data: bytes) -> object:
            where = FileRange(path="f", start=0, limit=len(data), header=b"k,n\n")
            found = decode_range(data, where, _COLUMNS, format=format)
            return found.rows.to_pylist(), found.errors.to_pylist()

        return decode

    return {
        "object": Decoder(objects.encode_object(contents), lambda d: decode_object(d, key="k")),
        "object, sealed": Decoder(body, lambda d: decode_object(objects.seal(d), key="k"), True),
        "spill, sealed anew": Decoder(
            spilled, lambda d: decode_spill(objects.seal(d), path="p"), True
        ),
        **_group_decoders(packed),
        "record": Decoder(packed, lambda d: decode_record(d, key="k", seqno=SeqNo(4)), True),
        "fence": Decoder(fence, fence_of, True),
        "rollup": Decoder(
            encode_rollup(RollupBody(state=LANGUAGE.encode_state(state), floor=1)), _rollup, True
        ),
        "state": Decoder(LANGUAGE.encode_state(state), _state, True),
        "diff": Decoder(LANGUAGE.encode_diff(diff), _changed, True),
        "hold": Decoder(
            LANGUAGE.encode_diff(Diff(holds={"h": hold}, released=("g",))), _changed, True
        ),
        "parts": Decoder(
            batch.packed, lambda d: msgspec.structs.replace(batch, packed=d).parts, True
        ),
        "bounds": Decoder(
            inline.key_bounds,
            lambda d: decode_bounds(msgspec.structs.replace(inline, key_bounds=d)),
        ),
        "part": _of_part(inline=False),
        "part in a state, summed anew": _of_part(inline=True),
        "schema": Decoder(SCHEMA.encoded, lambda d: decode_schema(d).updates),
        "mark": Decoder(encode_marker(mark), lambda d: read_marker(d, where="x")),
        "catalog": Decoder(row_of(info)[2].encode(), _catalog),
        "packed": Decoder(msgspec.msgpack.encode((1, 2, b"sum", 4, 5)), decode_packed, True),
        "health": Decoder(encode_health(health), decode_health),
        "copy": Decoder(head + tail, lambda d: decode_copy(d, store="memory://x", key="k")),
        "cut": Decoder(encode_cut(first_cut(1, 5)), decode_cut),
        "json": Decoder(b'{"k": "a", "n": 1}\n{"k": null, "n": -7}\n' * 3, decoded("json")),
        "csv": Decoder(b'k,n\na,1\n"b,c",2\n' * 3, decoded("csv")),
        **{name: Decoder(*one) for name, one in keyed_decoders().items()},
    }


def change_msgpack(dice: random.Random, data: bytes) -> bytes:
    """Change a value at some depth: its type, its size or its place."""
    value = msgspec.msgpack.decode(data)

    def other(old: Any) -> Any:
        made: list[Any] = [
            None, True, -1, 0, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, float("nan"), "", "x" * 999,
            b"", bytes(16), b"\xff" * 40, [], {}, [old], {"x": old}, [[[[]]]] * 9,
        ]  # fmt: skip
        return dice.choice(made)

    def changed(at: Any, depth: int) -> Any:
        if isinstance(at, dict) and at and (depth < 1 or dice.random() < 0.7):
            name = dice.choice(list(at))
            if dice.random() < 0.1:
                return {n: v for n, v in at.items() if n != name}
            return {**at, name: changed(at[name], depth + 1)}
        if isinstance(at, list) and at and (depth < 1 or dice.random() < 0.7):
            place = dice.randrange(len(at))
            if dice.random() < 0.2:
                return at[:place] + at[place + 1 :] if dice.random() < 0.5 else [*at, at[place]]
            return [*at[:place], changed(at[place], depth + 1), *at[place + 1 :]]
        return other(at)

    return msgspec.msgpack.encode(changed(value, 0))


def run_case(name: str, decoder: Decoder, seed: int, number: int) -> str:
    """Run one case. Return a complaint, or an empty text."""
    dice = random.Random(f"{name} {seed} {number}")
    if decoder.is_msgpack and dice.random() < 0.6:
        data = change_msgpack(dice, decoder.whole)
    else:
        data = change_bytes(dice, decoder.whole)[1]
    try:
        decoder.decode(data)
    except InvariantError as error:
        return f"blamed itself: {error}"
    except TidelogError:
        return ""
    except MemoryError:
        return "took too much memory"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.decoders", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=200, help="how many of each")
    parser.add_argument("--only", help="one decoder, by its name")
    given = parser.parse_args()
    decoders = _decoders()
    for decoder in decoders.values():
        decoder.decode(decoder.whole)  # Lazy imports happen before the memory limit.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    failed = 0
    for name, decoder in decoders.items():
        if given.only not in (None, name):
            continue
        for number in range(given.cases):
            print(f"{name} {number}", file=sys.stderr, flush=True)
            if told := run_case(name, decoder, given.seed, number):
                failed += 1
                print(f"{name}, case {number} of seed {given.seed}: {told[:300]}", flush=True)
    print(f"{len(decoders)} decoders, {given.cases} cases each, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
