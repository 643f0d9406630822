"""`netreduce show`: what a capture file says, one line a frame. The work is done in wire; imports wait until it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, BinaryIO, NoReturn

import typer

if TYPE_CHECKING:
    from netreduce.wire.dissect import FrameView

EXIT_BAD_FILE = 1
EXIT_USAGE = 2
Texts = list[str] | None


class Time(str, Enum):
    """How the time of a frame is shown."""

    RELATIVE = "relative"
    DELTA = "delta"
    UTC = "utc"


def _numbers(what: str) -> typer.models.OptionInfo:
    return typer.Option(metavar="N|A-B", help=f"Only {what}. Decimal or 0x; may be repeated.")


def _names(metavar: str, what: str) -> typer.models.OptionInfo:
    return typer.Option(metavar=metavar, help=f"Only {what}; may be repeated.")


def show(
    file: Annotated[str, typer.Argument(help="A pcap or pcapng file of Ethernet frames; - is standard input.")],
    qpn: Annotated[Texts, _numbers("packets to these queue pairs")] = None,
    psn: Annotated[Texts, _numbers("these packet sequence numbers")] = None,
    ip: Annotated[
        Texts, typer.Option(metavar="ADDRESS", help="Only from or to this address or network; may be repeated.")
    ] = None,
    opcode: Annotated[Texts, _names("NAME|0xNN", "what has this in its name: send, write_only, nak, cnp, arp")] = None,
    ring: Annotated[Texts, _numbers("packets of these rings, and their acknowledgements")] = None,
    rank: Annotated[Texts, _numbers("messages of these ranks")] = None,
    message: Annotated[Texts, _numbers("messages with these ids")] = None,
    port: Annotated[
        Texts, typer.Option(metavar="NAME", help="Only this interface of the capture; may be repeated.")
    ] = None,
    bad: Annotated[bool, typer.Option("--bad", help="Only malformed frames and those with a wrong ICRC.")] = False,
    retransmitted: Annotated[bool, typer.Option("--retransmitted", help="Only retransmissions.")] = False,
    roce: Annotated[bool, typer.Option("--roce", help="Only RoCEv2 packets.")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many frames that fit.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Figures of all frames instead of lines.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON object a line; with --summary one for all.")] = False,
    time: Annotated[
        Time, typer.Option(help="Since the first frame, the frame shown before, or in UTC.")
    ] = Time.RELATIVE,
) -> None:
    """Show a capture: a line a frame with opcode, queue pair, PSN, ring, rank, message and ICRC; or figures of it all.

    Conditions of different options must all hold; of several values of one option, one is enough.
    """
    from netreduce.errors import ConfigurationError
    from netreduce.wire.filters import FrameFilter, parse_addresses, parse_kind, parse_range

    try:
        wanted = FrameFilter(
            qpns=[parse_range(text, "--qpn") for text in qpn or ()],
            psns=[parse_range(text, "--psn") for text in psn or ()],
            addresses=[parse_addresses(text) for text in ip or ()],
            kinds=[parse_kind(text) for text in opcode or ()],
            rings=[parse_range(text, "--ring") for text in ring or ()],
            ranks=[parse_range(text, "--rank") for text in rank or ()],
            messages=[parse_range(text, "--message") for text in message or ()],
            ports=port or (),
            bad=bad,
            retransmitted=retransmitted,
            roce=roce,
        )
    except ConfigurationError as error:
        _fail(str(error), EXIT_USAGE)
    with _open(file) as stream, _quiet_when_the_reader_leaves():
        reading = _Reading(stream, "standard input" if file == "-" else file)
        views = islice(filter(wanted.admits, reading), count)
        lines = _summary_lines(views, json) if summary else _json_lines(views) if json else _lines(views, reading, time)
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if reading.problem:
            _fail(reading.problem, EXIT_BAD_FILE)


class _Reading:
    """Iterates the views of a file's frames; a fault in the file ends it, and is kept in `problem`."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self.first_time_ns = 0
        self.problem = ""

    def __iter__(self) -> Iterator[FrameView]:
        from netreduce.errors import CaptureError
        from netreduce.wire.capture import read_capture
        from netreduce.wire.conversations import Conversations
        from netreduce.wire.dissect import Dissector

        dissector, conversations = Dissector(), Conversations()
        try:
            for captured in read_capture(self._stream, self._name):
                if captured.number == 1:
                    self.first_time_ns = captured.time_ns
                view, payload = dissector.view(captured)
                conversations.follow(view, payload)
                yield view
        except CaptureError as error:
            self.problem = str(error)


def _lines(views: Iterable[FrameView], reading: _Reading, time: Time) -> Iterator[str]:
    from netreduce.wire.show import frame_line, seconds_text, utc_text

    is_terminal = sys.stdout.isatty()
    before_ns: int | None = None
    for view in views:
        start_ns = reading.first_time_ns if time is Time.RELATIVE or before_ns is None else before_ns
        line = frame_line(view, utc_text(view.time_ns) if time is Time.UTC else seconds_text(view.time_ns - start_ns))
        before_ns = view.time_ns
        colour = typer.colors.RED if view.is_bad else typer.colors.YELLOW if view.retransmitted else None
        yield typer.style(line, fg=colour) if is_terminal and colour else line


def _json_lines(views: Iterable[FrameView]) -> Iterator[str]:
    import msgspec

    return (msgspec.json.encode(view).decode() for view in views)


def _summary_lines(views: Iterable[FrameView], json: bool) -> Iterator[str]:
    import msgspec

    from netreduce.wire.summary import Summary

    summary = Summary()
    for view in views:
        summary.add(view)
    if json:
        yield msgspec.json.encode(summary.as_dict()).decode()
    else:
        yield from summary.lines()


@contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = open(file, "rb")  # noqa: SIM115 (closed below; errors of reading are not errors of opening)
    except OSError as error:
        _fail(f"{file}: {error.strerror or error}", EXIT_BAD_FILE)
    with stream:
        yield stream


@contextmanager
def _quiet_when_the_reader_leaves() -> Iterator[None]:
    """`netreduce show x.pcap | head` is no error: nobody wants the rest."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit finds an open end


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"netreduce show: {message}", err=True)
    raise typer.Exit(code)
