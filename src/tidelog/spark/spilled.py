"""What a survey's task decoded, on the executor's disk, for whichever task computes what is bound.

Workers come and go, and Spark puts a task where there is room: so rows lie in files, in the folder
that Spark gives an executor and removes with it. They only save work: what is not found, or is not
proven to be what was bound, is read and decoded anew (see `tidelog.collection.source.kept`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import xxhash

from tidelog.clock import Clock
from tidelog.collection.catalog.catalog import ERRORS_SCHEMA
from tidelog.collection.ingest.compute import Job
from tidelog.collection.source.kept import DecodedPiece, PieceProof
from tidelog.collection.source.look import SurveyJob

SPILLED_BYTES_MAX: Final = 1024 * 1024 * 1024
# To write and find a file takes as long as to decode so much.
SPILLED_BYTES_MIN: Final = 128 * 1024
_FOLDER: Final = "tidelog-rows"
_META: Final = b"tidelog"
_SUFFIX: Final = ".arrow"


class _Meta(msgspec.Struct, frozen=True, array_like=True):
    proof: PieceProof
    errors: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOnDisk:
    """Decoded pieces of one source as files in ``folder``.

    Units: of all sources whose folders lie beside it, the files that were written first go where
        there are more than ``bytes_max``; pieces of less than ``bytes_min`` are not kept.
    """

    folder: Path
    clock: Clock
    bytes_max: int = SPILLED_BYTES_MAX
    bytes_min: int = SPILLED_BYTES_MIN

    def keep(self, piece: DecodedPiece) -> None:
        if not self.bytes_min <= piece.size_bytes <= self.bytes_max:
            return
        name = f"{_digest(piece.proof.path)}-{self.clock.unique()}"
        part = self.folder / f"{name}.part"
        with suppress(OSError, pa.ArrowException):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                _write(part, piece)
                # Under its name a file is whole, whenever its writer was killed.
                part.rename(self.folder / (name + _SUFFIX))
            finally:
                part.unlink(missing_ok=True)
            self._make_room()

    def find(self, path: str) -> list[DecodedPiece]:
        found: list[DecodedPiece] = []
        for file in self.folder.glob(f"{_digest(path)}-*{_SUFFIX}"):
            with suppress(OSError, pa.ArrowException, msgspec.MsgspecError):
                found.append(_read(file))
        return [piece for piece in found if piece.proof.path == path]

    def forget(self) -> None:
        """Leave what there is to other tasks; it goes when there is no room for it."""

    def _make_room(self) -> None:
        files = [*self.folder.parent.glob(f"*/*{_SUFFIX}")]
        sizes = {file: stat for file in files if (stat := _stat(file)) is not None}
        left = sum(stat.st_size for stat in sizes.values())
        for file, stat in sorted(sizes.items(), key=lambda item: item[1].st_mtime_ns):
            if left <= self.bytes_max:
                break
            file.unlink(missing_ok=True)
            left -= stat.st_size


def rows_on_disk(
    job: Job | SurveyJob, *, clock: Clock, environ: Mapping[str, str] = os.environ
) -> RowsOnDisk | None:
    """Return where the rows of a job's source are kept by this executor; None if it has no disk.

    What rows are decoded to follows from the source's place, format and schema, and no others are
    found there.
    """
    local = environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not local:
        return None
    info = job.source
    facts = (info.id, info.url, info.format, info.envelope, info.time_column, info.csv, job.schema)
    return RowsOnDisk(folder=Path(local, _FOLDER, _digest(facts)), clock=clock)


def _digest(facts: object) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(facts))


def _stat(file: Path) -> os.stat_result | None:
    with suppress(OSError):
        return file.stat()
    return None


def _write(file: Path, piece: DecodedPiece) -> None:
    meta = msgspec.msgpack.encode(_Meta(piece.proof, _errors_bytes(piece.errors)))
    schema = piece.rows.schema.with_metadata({_META: meta})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as stream:
        stream.write_table(piece.rows)


def _read(file: Path) -> DecodedPiece:
    # Its pages are read as its rows are, and stay there when the file goes.
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as stream:
        table = stream.read_all()
    meta = msgspec.msgpack.decode((table.schema.metadata or {})[_META], type=_Meta)
    with pa.ipc.open_stream(pa.py_buffer(meta.errors)) as errors:
        return DecodedPiece(meta.proof, table.replace_schema_metadata(None), errors.read_all())


def _errors_bytes(errors: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ERRORS_SCHEMA.data) as stream:
        stream.write_table(errors)
    return sink.getvalue().to_pybytes()
