"""Traces: what happened in a run, moment by moment, as lines of JSON that the viewer plays and people can grep.

The first line names the nodes. Every other line is one moment with its time `t_ps`: an event of a node's log, a frame
that crossed a link (or was lost on it), or the contents of a buffer. Nothing in a trace is made up afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from netreduce.errors import ConfigurationError
from netreduce.trace.events import EVENT_FIELDS, Event
from netreduce.wire.capture import CapturedFrame
from netreduce.wire.conversations import Conversations
from netreduce.wire.dissect import Dissector, FrameView
from netreduce.wire.ina import INA_BYTES
from netreduce.wire.pcap import Direction

FORMAT = "netreduce-trace-1"
MOMENTS_MAX = 1_000_000
"""Longest trace: more than anyone steps through, and about 300 MB of text."""
SAMPLE_BYTES = 8


class NodeInfo(Struct, omit_defaults=True):
    """A host or a switch, as the trace's header names it."""

    name: str
    kind: Literal["host", "switch"]
    ip: str = ""


class Header(Struct, tag="header", tag_field="line"):
    """First line of a trace; `element` is the NumPy dtype in which samples are shown."""

    format: str
    title: str
    nodes: list[NodeInfo]
    element: str = "float32"


class EventMoment(Struct, tag="event", tag_field="line", omit_defaults=True):
    """One row of a node's event log; fields are those of `trace.events.EVENT`, -1 where they do not apply."""

    t_ps: int
    node: str
    event: str
    port: int = -1
    qpn: int = -1
    psn: int = -1
    ring_id: int = -1
    rank: int = -1
    message_id: int = -1
    slot: int = -1
    bytes: int = -1
    detail: int = -1


class FrameMoment(Struct, tag="frame", tag_field="line", omit_defaults=True):
    """A frame that arrived at `target` (or was lost on the way there); `sample` is the first data bytes, in hex."""

    t_ps: int
    source: str
    target: str
    view: FrameView
    sample: str = ""
    lost: bool = False


class BufferMoment(Struct, tag="buffer", tag_field="line"):
    """The elements that a host's buffer shows from now on."""

    t_ps: int
    node: str
    values: list[str]


Moment = EventMoment | FrameMoment | BufferMoment
_decoder = msgspec.json.Decoder(Header | Moment)


class Trace:
    """A header and its moments, in the order in which they happened."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.moments: list[Moment] = []
        self._dissector, self._conversations = Dissector(), Conversations()

    def __iter__(self) -> Iterator[Moment]:
        return iter(self.moments)

    def add_events(self, node: str, rows: np.ndarray) -> None:
        """Append rows of a drained event log (recarray of `EVENT`)."""
        for row in rows.tolist():
            fields = dict(zip(EVENT_FIELDS, row, strict=True))
            time_ps, kind = fields.pop("time_ps"), fields.pop("kind")
            self.moments.append(EventMoment(t_ps=time_ps, node=node, event=Event(kind).name, **fields))

    def add_frame(self, time_ps: int, source: str, target: str, data: bytes, *, lost: bool = False) -> None:
        """Append a frame (bytes from the destination MAC on) that arrived at `target`, or was lost before it did."""
        port = f"{source} to {target}"
        number = len(self.moments) + 1
        captured = CapturedFrame(number, time_ps // 1000, data, len(data), port, Direction.INBOUND)
        view, payload = self._dissector.view(captured)
        self._conversations.follow(view, payload)
        skipped = INA_BYTES if view.ina_header else 0
        sample = payload[skipped : skipped + SAMPLE_BYTES].hex()
        self.moments.append(FrameMoment(time_ps, source, target, view, sample, lost))

    def add_buffer(self, time_ps: int, node: str, values: Sequence[str]) -> None:
        """Append a host's buffer, as the texts of its elements."""
        self.moments.append(BufferMoment(time_ps, node, list(values)))

    def write(self, path: str | Path) -> None:
        """Write the trace as lines of JSON. Raises OSError if the file cannot be written."""
        with Path(path).open("wb") as file:
            file.write(msgspec.json.encode(self.header) + b"\n")
            for moment in self.moments:
                file.write(msgspec.json.encode(moment) + b"\n")


def read_trace(path: str | Path) -> Trace:
    """Read a trace. Raises OSError, or ConfigurationError that names the line that is wrong."""
    trace: Trace | None = None
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                moment = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{path}, line {number}: no line of a trace ({error})") from error
            if trace is None:
                if not isinstance(moment, Header) or moment.format != FORMAT:
                    raise ConfigurationError(f"{path}: the first line must be a header of format {FORMAT}")
                trace = Trace(moment)
            elif isinstance(moment, Header):
                raise ConfigurationError(f"{path}, line {number}: a second header")
            elif number > MOMENTS_MAX:
                raise ConfigurationError(f"{path}: more than {MOMENTS_MAX:,} moments; record a shorter run")
            else:
                trace.moments.append(moment)
    if trace is None:
        raise ConfigurationError(f"{path}: empty; a trace starts with a header line")
    return trace
