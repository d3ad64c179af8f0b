"""The awaited face: the same names as `tidelog`, for programs that run a loop of their own."""

from tidelog.collection.collection import Collection
from tidelog.collection.create import SourceSpec
from tidelog.location import Location, open_location
from tidelog.persist.shard import Shard
from tidelog.wal.log import Log

connect = open_location

__all__ = ["Collection", "Location", "Log", "Shard", "SourceSpec", "connect"]
