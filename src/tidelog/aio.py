"""The awaited face: the same names as `tidelog`, for programs that run a loop of their own."""

from tidelog.collection.collection import Collection
from tidelog.collection.create import SourceSpec
from tidelog.location import Location, open_location
from tidelog.persist.shard import Shard
from tidelog.wal.append.batching import Batching
from tidelog.wal.gc.cursors import Witness
from tidelog.wal.gc.deletion import Pace
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.read.limits import Limits
from tidelog.wal.slot_protocol.shape import Shape

connect = open_location

__all__ = [
    "Batching",
    "Collection",
    "Keep",
    "Limits",
    "Location",
    "Log",
    "Pace",
    "Shape",
    "Shard",
    "SourceSpec",
    "Witness",
    "connect",
]
