"""The state of a writer's epoch: each event decides what to send, without a store or a task."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tidelog.core.setsum import Setsum
from tidelog.errors import LocationError, Outcome, StoreRefused
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.queue import REST_US, Queue
from tidelog.wal.append.work import Work
from tidelog.wal.format.link import Epoch, Tail
from tidelog.wal.slot_protocol.pipeline import Pipeline, SentBatch, Wait, encode_batch

EPOCH = Epoch(number=1, id="0" * 16, first_slot=5, alpha=2)
TAIL = Tail(epoch=EPOCH, slot=5, position=10, setsum=Setsum.zero(), log_bytes=0)
NEXT = replace(EPOCH, number=2, first_slot=6)
ONE = pa.array([b"one"], pa.binary())


def pipeline_of(
    *, interval_us: int = 0, behind_max: int = 9, puts_per_second: float | None = None
) -> Pipeline:
    queue = Queue(
        batching=Batching(batch_bytes=1, interval_us=interval_us, puts_per_second=puts_per_second)
    )
    return Pipeline(queue=queue, tail=TAIL, steps=[], behind_max=behind_max)


def sent_by(pipeline: Pipeline) -> SentBatch:
    """Return the object that the pipeline sends next."""
    batch = pipeline.next_batch(0)
    assert isinstance(batch, list)
    tail = pipeline.tail
    sent = pipeline.launch(batch, tail, *encode_batch(batch, tail, now_us=1, writer="w"))
    assert sent is not None
    return sent


def answers(works: list[Work]) -> list[object]:
    """Return the position or the error of each append; None if it has no answer."""
    done = [work.done for work in works]
    return [(one.exception() or one.result()) if one.done() else None for one in done]


async def test_an_append_is_answered_once_all_lower_slots_are() -> None:
    """A later answer alone settles nothing, and no more than alpha puts are under way."""
    pipeline = pipeline_of()
    works = [pipeline.queue.add(ONE) for _ in range(3)]
    first, second = sent_by(pipeline), sent_by(pipeline)

    assert pipeline.next_batch(0) == Wait()
    pipeline.note_stored(second)
    assert answers(works) == [None, None, None]
    pipeline.note_stored(first)
    assert answers(works) == [10, 11, None]
    assert [step.path for step in pipeline.steps] == [EPOCH.path(5), EPOCH.path(6)]  # type: ignore[union-attr]
    assert sent_by(pipeline).fragment.start == 12


async def test_a_refused_batch_frees_its_slot_only_at_the_end() -> None:
    """The next batch takes the slot of a refused one, unless a later slot is in use."""
    pipeline = pipeline_of()
    works = [pipeline.queue.add(ONE) for _ in range(4)]
    pipeline.note_refusal(sent_by(pipeline), StoreRefused("denied"))

    first, second = sent_by(pipeline), sent_by(pipeline)
    assert (first.before.slot, second.before.slot) == (5, 6)
    pipeline.note_refusal(first, StoreRefused("denied"))
    pipeline.note_stored(second)
    assert pipeline.next_batch(0) is None, "a gap ends the epoch"
    pipeline.give_up()
    told = answers(works)
    assert [type(one) for one in told[:2]] == [StoreRefused, StoreRefused]
    assert (told[2:], len(pipeline.queue)) == ([None, None], 2), "void, so sent again"


async def test_a_batch_encoded_for_a_lost_tail_goes_back() -> None:
    """A batch that was encoded after a batch that the store then refused is admitted again."""
    pipeline = pipeline_of()
    for _ in range(2):
        pipeline.queue.add(ONE)
    refused, late, tail = sent_by(pipeline), pipeline.next_batch(0), pipeline.tail
    assert isinstance(late, list)
    pipeline.note_refusal(refused, LocationError("denied"))

    assert pipeline.launch(late, tail, *encode_batch(late, tail, now_us=1, writer="w")) is None
    assert pipeline.next_batch(0) == late


async def test_a_fence_ends_the_epoch_once_all_lower_slots_are_answered() -> None:
    """A fence decides nothing about lower slots, and makes all later ones void."""
    pipeline = pipeline_of()
    works = [pipeline.queue.add(ONE) for _ in range(3)]
    first, second = sent_by(pipeline), sent_by(pipeline)
    pipeline.note_fence(second, NEXT)

    assert (pipeline.next_batch(0), pipeline.is_idle) == (Wait(), False)
    pipeline.note_stored(first)
    assert (pipeline.next_batch(0), pipeline.fence) == (None, NEXT)
    assert answers(works) == [10, None, None]


async def test_an_unknown_answer_stops_the_epoch() -> None:
    """After a doubt nothing more is sent. A writer that gives up reports the batch as unknown."""
    pipeline = pipeline_of()
    works = [pipeline.queue.add(ONE) for _ in range(2)]
    sent_by(pipeline)
    pipeline.note_doubt(LocationError("no answer", outcome=Outcome.UNKNOWN))

    assert pipeline.next_batch(0) is None
    pipeline.give_up()
    told = answers(works)[0]
    assert isinstance(told, LocationError)
    assert told.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("is_closing", [False, True])
async def test_appends_wait_for_a_late_manifest(is_closing: bool) -> None:
    """With too many steps past the manifest, only a closing writer sends."""
    pipeline = pipeline_of(behind_max=1)
    pipeline.queue.add(ONE)
    pipeline.steps.append(NEXT)
    if is_closing:
        pipeline.queue.close()

    assert (pipeline.next_batch(0) == Wait()) != is_closing


async def test_the_settings_delay_a_batch_in_short_rests() -> None:
    """The interval and the rate are waits, each short enough that a close is noticed."""
    paced = pipeline_of(interval_us=250_000)
    limited = pipeline_of(puts_per_second=1.0)
    for pipeline in (paced, limited):
        for _ in range(2):
            pipeline.queue.add(pa.array([b""], pa.binary()))
    paced.queue.batching = replace(paced.queue.batching, batch_bytes=1_000)
    batch = paced.next_batch(0)
    assert isinstance(batch, list)
    assert len(batch) == 2
    paced.queue.begun_us = 0
    rests = [paced.next_batch(now) for now in (0, 100_000, 200_000)]
    assert rests == [Wait(REST_US), Wait(REST_US), Wait(50_000)]
    assert paced.queue.is_resting
    assert paced.next_batch(250_000) == Wait()

    sent_by(limited)
    assert limited.next_batch(1) == Wait(REST_US)
    assert isinstance(limited.next_batch(1_000_001), list)
