"""The options of ``format("tidelog")`` with ``kind`` ``keyed``, parsed once. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import quoted
from tidelog.errors import UsageError
from tidelog.keyed.values import KeyedQuery, Keys, chosen_keys
from tidelog.spark.keyed.wanted import KeyedScope, scope_of
from tidelog.spark.log_options import EARLIEST, LATEST, start_told, start_word
from tidelog.spark.options import (
    batch_named,
    checkpoint_of,
    location_told,
    refuse_options,
    told_options,
    whole_told,
)

KINDS: Final = ("key", "prefix")
FORMS: Final = ("", "hex", "base64")
OF_READS: Final = ("start", "limit", "maxRecordsPerBatch", "checkpoint")
OF_WRITES: Final = ("txnAppId", "txnVersion")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedReadSettings:
    """The settings of a read of a keyed log.

    Shape: ``from_latest`` overrides the start in ``wanted``. ``checkpoint`` is the name of a
        checkpoint. ``batch_records_max`` applies to streams.
    """

    location_url: str
    name: str
    wanted: KeyedScope
    has_limit: bool = False
    from_latest: bool = False
    checkpoint: str | None = None
    batch_records_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedWriteSettings:
    """The target of a write; ``batch`` names a batch that is written once.

    ``checkpoint`` is the place of a stream's checkpoint.
    """

    location_url: str
    name: str
    batch: tuple[str, int] | None = None
    checkpoint: str | None = None


def read_keyed_settings(
    options: Mapping[str, str], environment: Mapping[str, str]
) -> KeyedReadSettings:
    """Parse the options of a keyed log, for ``spark.read`` and ``spark.readStream``.

    Raises:
        UnknownOption, OptionMissing, UsageError: an option is wrong; the message names it.
    """
    values = told_options(options, kind="keyed")
    refuse_options(values, OF_WRITES, "applies only to writes")
    said = start_word(values)
    start = 0 if said in (EARLIEST, LATEST) else start_told(said, of="a sequence")
    limit = whole_told("limit", values["limit"], least=0) if "limit" in values else None
    return KeyedReadSettings(
        location_url=location_told(values, environment),
        name=values["path"],
        wanted=scope_of(KeyedQuery(keys=_keys(values), start=start, limit=limit)),
        has_limit=limit is not None,
        from_latest=said == LATEST,
        checkpoint=values.get("checkpoint"),
        batch_records_max=whole_told("maxRecordsPerBatch", values["maxrecordsperbatch"], least=1)
        if "maxrecordsperbatch" in values
        else None,
    )


def read_keyed_write_settings(
    options: Mapping[str, str], environment: Mapping[str, str]
) -> KeyedWriteSettings:
    """Parse the options of a write of a DataFrame or a stream.

    Raises:
        UnknownOption, OptionMissing, UsageError: an option is wrong; the message names it.
    """
    checkpoint, given = checkpoint_of(options)
    values = told_options(given, kind="keyed")
    refuse_options(values, OF_READS, "applies only to reads")
    refuse_options(
        values,
        [f"{kind}{form.capitalize()}" for kind in KINDS for form in FORMS],
        "applies only to reads",
    )
    batch = batch_named(values)
    return KeyedWriteSettings(
        location_url=location_told(values, environment),
        name=values["path"],
        batch=batch,
        checkpoint=checkpoint,
    )


def check_keyed_for_batch(settings: KeyedReadSettings) -> None:
    """Check that no setting applies only to a stream.

    Raises:
        UsageError: one does.
    """
    if settings.from_latest:
        raise UsageError("start 'next' needs readStream: remove the option to read all records")
    if settings.batch_records_max is not None:
        raise UsageError("maxRecordsPerBatch needs readStream: use the option 'limit' to read less")


def check_keyed_for_stream(settings: KeyedReadSettings) -> None:
    """Check that no setting applies only to a batch read.

    Raises:
        UsageError: one does.
    """
    if settings.has_limit:
        raise UsageError("a stream has no end, so it has no option 'limit': use spark.read instead")
    if settings.checkpoint is not None:
        raise UsageError("a checkpoint never changes: use spark.read, or remove the option")


def _keys(values: Mapping[str, str]) -> Keys:
    """Return the keys that the options choose; all keys without an option."""
    given = [(kind, form) for kind in KINDS for form in FORMS if f"{kind}{form}" in values]
    if len(given) > 1:
        names = ", ".join(f"{kind}{form.capitalize()}" for kind, form in given)
        raise UsageError("set only one option for a key or a prefix", given=names)
    chosen = {kind: _bytes(values[f"{kind}{form}"], form) for kind, form in given}
    return chosen_keys(key=chosen.get("key"), prefix=chosen.get("prefix"))


def _bytes(text: str, form: str) -> bytes:
    try:
        if form == "hex":
            return bytes.fromhex(text)
        return base64.b64decode(text, validate=True) if form == "base64" else text.encode()
    except (ValueError, binascii.Error) as error:
        raise UsageError(
            f"a key or a prefix is not valid {form or 'text'}", given=quoted(text)
        ) from error
