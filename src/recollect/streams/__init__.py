"""Streams of tasks: where the data comes from and how it is cut, cached and shown."""

from recollect.streams.batch import Batch, Samples, TaskData, augment
from recollect.streams.build import build_stream, open_stream, stream_from_tensors, streams
from recollect.streams.images import ImageOptions
from recollect.streams.pixels import Moves, Pixels
from recollect.streams.protocol import OMITTED, Dataset, Protocol, Size, Source, StreamOptions
from recollect.streams.split import Split, Stream, Task, TaskInfo, split_rows

__all__ = [
    "OMITTED",
    "Batch",
    "Dataset",
    "ImageOptions",
    "Moves",
    "Pixels",
    "Protocol",
    "Samples",
    "Size",
    "Source",
    "Split",
    "Stream",
    "StreamOptions",
    "Task",
    "TaskData",
    "TaskInfo",
    "augment",
    "build_stream",
    "open_stream",
    "split_rows",
    "stream_from_tensors",
    "streams",
]
