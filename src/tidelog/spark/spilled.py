"""The rows that a survey's task decoded, on the executor's disk, for the task that computes them.

Workers are short-lived, and Spark places a task on any free core. So the rows are files in the
folder that Spark gives an executor and removes with it. They only save work. If a file is missing,
or its proof does not match the binding, the rows are decoded again (see
`tidelog.collection.source.decoded_cache`).

Shape of a file's name: a digest of the source file's path, the piece's first offset and its limit,
a unique id, and the xxh3-128 of the file's bytes. Files are not synced. If a disk returns other
bytes after a crash, the checksum fails, and the file is ignored.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import xxhash

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA
from tidelog.collection.ingest.compute import Job
from tidelog.collection.source.decoded_cache import DecodedPiece, PieceProof
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.core.clock import Clock

SPILLED_BYTES_MAX: Final = 1024 * 1024 * 1024
# Spark needs this disk for its own files.
LEFT_FREE_BYTES: Final = 1024 * 1024 * 1024
# Decoding this much takes as long as writing and finding a file.
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

    Units: bytes. The limits cover all sources of this executor. A new file deletes the oldest ones
        while all files exceed ``bytes_max``, or less than ``left_free_bytes`` of the disk are
        free. Pieces of less than ``bytes_min`` are not stored.
    """

    folder: Path
    clock: Clock
    bytes_max: int = SPILLED_BYTES_MAX
    bytes_min: int = SPILLED_BYTES_MIN
    left_free_bytes: int = LEFT_FREE_BYTES

    def keep(self, piece: DecodedPiece) -> None:
        if not self.bytes_min <= piece.size_bytes <= self.bytes_max:
            return
        with suppress(OSError, pa.ArrowException):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._make_room(piece.size_bytes):
                return
            unique, proof = self.clock.unique(), piece.proof
            part = self.folder / f"{unique}.part"
            try:
                _write(part, piece)
                sum_ = xxhash.xxh3_128_hexdigest(_mapped(part))
                place = f"{proof.first:x}-{proof.limit:x}"
                name = f"{_digest(proof.path)}-{place}-{unique}-{sum_}{_SUFFIX}"
                # A file under its final name is complete, even if its writer was killed.
                part.rename(self.folder / name)
            finally:
                part.unlink(missing_ok=True)

    def find(self, path: str, low: int, high: int) -> list[DecodedPiece]:
        pieces: list[DecodedPiece] = []
        for file in self.folder.glob(f"{_digest(path)}-*{_SUFFIX}"):
            _, first, limit, _, sum_ = file.name.removesuffix(_SUFFIX).split("-")
            if int(first, 16) >= high or low >= int(limit, 16):
                continue
            with suppress(OSError, pa.ArrowException, msgspec.MsgspecError):
                data = _mapped(file)
                if xxhash.xxh3_128_hexdigest(data) == sum_:
                    pieces.append(_read(data))
        return [piece for piece in pieces if piece.proof.path == path]

    def forget(self) -> None:
        """Do nothing: other tasks may need the files; `keep` deletes the oldest ones."""

    def _make_room(self, wanted: int) -> bool:
        """Delete the oldest files until ``wanted`` bytes fit; return True if they fit."""
        files = [*self.folder.parent.glob(f"*/*{_SUFFIX}")]
        sizes = {file: stat for file in files if (stat := _stat(file)) is not None}
        kept = sum(stat.st_size for stat in sizes.values())
        free = shutil.disk_usage(self.folder).free
        allowed = min(self.bytes_max, kept + free - self.left_free_bytes)
        for file, stat in sorted(sizes.items(), key=lambda item: item[1].st_mtime_ns):
            if kept + wanted <= allowed:
                break
            file.unlink(missing_ok=True)
            kept -= stat.st_size
        return kept + wanted <= allowed


def rows_on_disk(
    job: Job | SurveyJob, *, clock: Clock, environ: Mapping[str, str] = os.environ
) -> RowsOnDisk | None:
    """Return the store for the decoded rows of a job's source; None if Spark gave no folder.

    The source's place, format and schema determine its decoded rows, so they name the folder.
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


def _mapped(file: Path) -> pa.Buffer:
    # Pages load as the rows are read, and stay readable after the file is deleted.
    with pa.memory_map(str(file)) as source:
        return source.read_buffer()


def _read(data: pa.Buffer) -> DecodedPiece:
    with pa.ipc.open_file(data) as stream:
        table = stream.read_all()
    meta = msgspec.msgpack.decode((table.schema.metadata or {})[_META], type=_Meta)
    with pa.ipc.open_stream(pa.py_buffer(meta.errors)) as errors:
        return DecodedPiece(meta.proof, table.replace_schema_metadata(None), errors.read_all())


def _errors_bytes(errors: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ERRORS_SCHEMA.data) as stream:
        stream.write_table(errors)
    return sink.getvalue().to_pybytes()
