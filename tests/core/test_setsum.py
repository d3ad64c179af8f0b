"""Setsums against the vectors of other implementations, and the algebra they must obey."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.setsum import PRIMES, Setsum, record_item, record_setsum, setsum_of
from tidelog.errors import CorruptionError, UsageError

T = 1234567890123456
SEVEN = [
    f"this is the {which} value".encode()
    for which in ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
]
RECORDS = [
    (1, T, ["2a2b2c2d"], "9a2712dcd8675fd36a0d3283d6bda7a87a4a8bf81b4af96a98dd7b283d6f1cfe"),
    (
        100,
        T,
        ["010203", "040506", "070809"],
        "7751cc108d8a2a134d6e3c62d5a47499ca465d50d52841c8bf5c56e678e53320",
    ),
    (
        0,
        T,
        ["010203", "040506", "070809"],
        "8ab4181e47a93dd5fb9d21f9bae97f6b89a8addc734d3b261fe039d63e90869c",
    ),
    (1, 0, [""], "87b93ce76ed528bc514b0860478fa82b663023f0fe70fbbf12621392cd5d1db0"),
    (
        7,
        1700000000000000,
        ["", b"hello".hex(), b"hello".hex(), bytes(range(256)).hex()],
        "02f6934d4518831be82a89533fd64f8719c9de8dbd4d5a0502d4c063cd17da3e",
    ),
    (
        2**64 - 2,
        2**64 - 1,
        [(b"x" * 1000).hex()],
        "320177a1ce2dfb09d2df87db4bc421b8f4b52450b91c4468e4337ff968129e0d",
    ),
]
SUMS = st.builds(Setsum.of, st.binary(max_size=8)) | st.builds(
    lambda *columns: Setsum(columns), *(st.integers(0, prime - 1) for prime in PRIMES)
)


def test_seven_values_sum_to_the_crates_vector_in_any_order() -> None:
    """The sum of seven values equals the vector in the tests of the setsum crate."""
    expected = "c5b3fd4d01f2b8040f54ab7412ca53bbfc990e272a40add1c4ceba6b2fe472d5"

    assert setsum_of(SEVEN).hex() == expected
    assert setsum_of(reversed(SEVEN)).hex() == expected
    assert sum(map(Setsum.of, SEVEN), Setsum.zero()).hex() == expected


def test_the_empty_item_is_not_nothing() -> None:
    """SHA3-256 of nothing; Keccak-256 or an older SHA-256 would give other digits."""
    empty = "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"

    assert Setsum.of(b"").hex() == empty
    assert setsum_of([]) == Setsum.zero() == Setsum.from_hex("0" * 64)
    assert Setsum.zero().digest() == bytes(32)


def test_the_inverse_is_the_crates() -> None:
    """The crate's vector of columns and their inverses."""
    columns = (
        *(0xFFFFEEEE, 0xDDDDCCCC, 0xBBBBAAAA, 0x99998888),
        *(0x77776666, 0x66665555, 0x44443333, 0x22221111),
    )
    inverse = (
        *(4365, 572666659, 1145328917, 1717991189),
        *(2290653487, 2576984612, 3149646900, 3722309174),
    )

    assert (-Setsum(columns)).columns == inverse
    assert -Setsum.zero() == Setsum.zero()


def test_a_hash_beyond_its_prime_is_reduced() -> None:
    """One item in some ten million has such a column; here it is column 1."""
    item = (7737638).to_bytes(8, "big")

    assert (
        Setsum.of(item).hex() == "73cbff120e0000005be9c610dcbdbbe197978f2b191b1bb3ea1806dd30743bd7"
    )
    assert setsum_of([item]) == Setsum.of(item)
    assert (
        hashlib.sha3_256(item).hexdigest()
        == "73cbff12fdffffff5be9c610dcbdbbe197978f2b191b1bb3ea1806dd30743bd7"
    )


def test_manifests_of_wal3_add_up() -> None:
    """From the unit tests of wal3's manifest, and from a manifest in production."""
    f1, f2, f3, f12, f123 = map(
        Setsum.from_hex,
        [
            "4eec78e0b5cd15df7b36fd42cdc3aecb1986ffa3655c338201db88f80d855465",
            "dd901afef0e5d336aaa52a2df7f785c909091fd0aa011980de443a61a889d3e1",
            "3b82c2baba815ec0f7ead22dc91939cc31bf338bb599ff0435251380fd0722ad",
            "307d93deb6b3e91525dc277027bc34958d8f1e74965e4c027820c3596e0f2847",
            "70ff5599703548d61cc7fa9d53d66d61be4e52ff4bf84b07ad45d6d96b174af4",
        ],
    )
    collected, fragment, whole = map(
        Setsum.from_hex,
        [
            "8ab5679e202200027046c6b42d7ca4605004c8de3e3988ce3240212c9fa269cd",
            "0ff66765647c73839d76a6cb4ce16a8340b71c543c171843a95d8e48c1bee3fc",
            "9eabcf03849e73854ebd6c80795d0fe4fbbbe4320151a011db9daf7419624dca",
        ],
    )

    assert f1 + f2 == f12
    assert f12 + f3 == f123
    assert collected + fragment == whole
    assert whole - collected == fragment


@pytest.mark.parametrize(("start", "timestamp_us", "bodies", "expected"), RECORDS)
def test_records_sum_with_their_place_and_time(
    start: int, timestamp_us: int, bodies: list[str], expected: str
) -> None:
    """The sum of a record includes its position and its time, big endian."""
    records = [(start + at, timestamp_us, bytes.fromhex(body)) for at, body in enumerate(bodies)]

    assert sum((record_setsum(*record) for record in records), Setsum.zero()).hex() == expected
    assert setsum_of(record_item(*record) for record in records).hex() == expected


def test_a_record_is_spelled_as_wal3_spells_it() -> None:
    """The first record vector in full."""
    item = bytes.fromhex("0000000000000001000462d53c8abac02a2b2c2d")

    assert record_item(1, T, bytes.fromhex("2a2b2c2d")) == item
    # No column of this one is beyond its prime, so its sum is the hash itself.
    assert hashlib.sha3_256(item).hexdigest() == RECORDS[0][-1]


def test_sums_of_records_add_subtract_and_invert() -> None:
    """The algebra on the first two rows of the record vectors."""
    first, second = Setsum.from_hex(RECORDS[0][-1]), Setsum.from_hex(RECORDS[1][-1])

    assert str(first + second) == "1179deec65f289e6b77b6ee50e631c42af91e84877733a33f03ad20e6e55501e"
    assert str(first - second) == "23d645cb4bdd34c01d9ff5200119330fb0032ea8bf20b8a240802542c589e8dd"
    assert str(-first) == "61d8ed231798a02c55f2cd7cc74158571bb574075eb50695cf2184d70a90e301"


@given(items=st.lists(st.binary(), max_size=20), data=st.data())
def test_order_and_grouping_do_not_matter(items: list[bytes], data: st.DataObject) -> None:
    """Compaction may reorder and regroup records, so neither may change the sum of the whole."""
    shuffled = data.draw(st.permutations(items), label="shuffled")
    cut = data.draw(st.integers(0, len(items)), label="cut")
    head, tail, whole = setsum_of(items[:cut]), setsum_of(items[cut:]), setsum_of(items)

    assert setsum_of(shuffled) == whole
    assert head + tail == whole
    assert whole - head == tail


@given(a=SUMS, b=SUMS)
def test_sums_form_a_commutative_group(a: Setsum, b: Setsum) -> None:
    """Addition is associative and commutative with an inverse, as garbage collection assumes."""
    assert a + b == b + a
    assert a + Setsum.zero() == a
    assert a - a == a + -a == Setsum.zero()
    assert Setsum.zero() - -a == a
    assert a - b == -(b - a)


@given(item=st.binary(), data=st.data())
def test_only_the_concatenation_of_pieces_counts(item: bytes, data: st.DataObject) -> None:
    """There is no framing between the pieces of an item."""
    cut = data.draw(st.integers(0, len(item)), label="cut")

    assert Setsum.of_pieces([item[:cut], b"", item[cut:]]) == Setsum.of(item)


@given(items=st.lists(st.binary(), min_size=1, max_size=5))
def test_a_duplicate_counts(items: list[bytes]) -> None:
    """A record written twice is not the same log."""
    assert setsum_of([*items, items[0]]) != setsum_of(items)


@given(total=SUMS)
def test_sums_survive_being_written(total: Setsum) -> None:
    """As text in manifests and as objects between processes."""
    assert Setsum.from_hex(total.hex()) == Setsum.from_hex(total.hex().upper()) == total
    assert bytes.fromhex(total.hex()) == total.digest()
    assert pickle.loads(pickle.dumps(total)) == total


@pytest.mark.parametrize(
    "text", ["", "0" * 63, "0" * 65, "g" + "0" * 63, "0" * 63 + "\n", " " + "0" * 63, "٠" * 64]
)
def test_garbage_is_no_sum(text: str) -> None:
    """A text that is not 64 hex digits is refused."""
    with pytest.raises(CorruptionError, match="64 hex digits"):
        Setsum.from_hex(text)


@pytest.mark.parametrize("column", range(8))
def test_a_column_not_below_its_prime_is_refused(column: int) -> None:
    """Two spellings of one sum would give one object two names."""
    columns = [0] * 8
    columns[column] = PRIMES[column]
    text = b"".join(c.to_bytes(4, "little") for c in columns).hex()

    with pytest.raises(CorruptionError, match="less than its prime"):
        Setsum.from_hex(text)
    with pytest.raises(UsageError, match="less than its prime"):
        Setsum(tuple(columns))


def test_places_outside_64_bits_are_refused() -> None:
    """The preimage has 64 bits for each."""
    for position, timestamp_us in ((-1, 0), (0, -1), (2**64, 0), (0, 2**64)):
        with pytest.raises(UsageError, match="2\\^64-1"):
            record_setsum(position, timestamp_us, b"")


def test_many_small_items_take_no_more_memory_than_a_few() -> None:
    """Eight million empty records took two gigabytes: their digests were all kept until the end."""
    few, many = 66_000, 330_000
    peaks = []
    for count in (few, many):
        tracemalloc.start()
        setsum_of(itertools.repeat(b"", count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < peaks[0] * 1.5


def test_a_sum_does_not_depend_on_how_many_items_come_at_once() -> None:
    """Items are summed in pieces, and the last piece is seldom full."""
    count = 65_536 + 3

    assert setsum_of(itertools.repeat(b"a", count)) == setsum_of([b"a"] * 65_536) + setsum_of(
        [b"a"] * 3
    )
