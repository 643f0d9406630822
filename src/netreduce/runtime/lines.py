"""The switch's ports in live runs: bursts between each port's carrier and the switch.

Nothing here waits: what a full carrier refuses stays in that port's bounded egress queue, and what does not fit there
is dropped and counted by the switch. Cables are looked at in every round; other carriers when the poller says so.
Cables of a single switch that nobody watches or disturbs have their turns in one call (exchange.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from netreduce.runtime import exchange, system_calls
from netreduce.runtime.cable import (
    PIPE_BYTES,
    BadBurstError,
    Cable,
    CableClosedError,
    Outlet,
    load,
    make_burst_buffer,
)
from netreduce.runtime.carrier import Carrier, Generous
from netreduce.runtime.clock import Clock
from netreduce.runtime.live_faults import FaultyCarrier, LiveFaults
from netreduce.runtime.poller import WRITABLE, Poller
from netreduce.runtime.tracing import Recorder
from netreduce.switch import Switch
from netreduce.units import NEVER_PS
from netreduce.wire.pcap import Direction, PcapWriter

if TYPE_CHECKING:
    from netreduce.control.switch_network import AnySwitch

BURSTS_PER_ROUND = 4
"""Bursts taken from one carrier before the others have their turn and everything that has come of it is sent."""


@dataclass
class _Line:
    number: int
    carrier: Carrier
    outlet: Outlet
    bursts: int  # taken in a round
    is_full: bool = False
    cable: Cable | None = None  # the carrier, or what is behind its faults, if that is a cable
    faults: FaultyCarrier | None = None  # the carrier itself, if it has faults
    takes: tuple[bool, bool] = (True, True)  # what the poller was told of stalls
    place: int = -1  # of a plain cable among those


class Lines:
    """Carriers at the ports of `switch`, watched by `poller`, with `faults` if there are any.

    `capture` sees every burst that crosses one, `recorder` every frame that comes and every event of the switch.
    ``lost(port, reason)`` is called when a carrier has failed; the port is unplugged already.
    """

    def __init__(
        self,
        switch: AnySwitch,
        poller: Poller,
        clock: Clock,
        lost: Callable[[int, str], None],
        capture: PcapWriter | None = None,
        recorder: Recorder | None = None,
        faults: LiveFaults | None = None,
    ) -> None:
        self._switch = switch
        self._poller = poller
        self._clock = clock
        self._lost = lost
        self._capture = capture
        self._recorder = recorder
        self._faults = faults
        self._buffer = make_burst_buffer()
        self._compiled = load()
        is_watched = capture is not None or recorder is not None
        self._tables = switch.tables if isinstance(switch, Switch) and not is_watched else None
        self._serve = None if self._tables is None else exchange.load(self._tables)
        self._events, self._scratch = system_calls.make_events(exchange.EVENTS_MAX), np.zeros(2, np.int64)
        self._lines: dict[int, _Line] = {}
        self._faulty: dict[int, _Line] = {}
        self._list_cables()
        self._set_aside: set[int] = set()
        for number in range(switch.port_count):
            switch.detach(number)  # nothing is plugged in yet: nothing is to be flooded there

    def __contains__(self, number: int) -> bool:
        return number in self._lines

    def numbers(self) -> list[int]:
        """The ports that something is plugged into."""
        return sorted(self._lines)

    def free_port(self, liked: int = -1) -> int | None:
        """A port that nothing is plugged into or set aside for, `liked` or the lowest; None when there is none."""
        taken = self._lines.keys() | self._set_aside
        if 0 <= liked < self._switch.port_count and liked not in taken:
            return liked
        return next((number for number in range(self._switch.port_count) if number not in taken), None)

    def set_aside(self, number: int) -> None:
        """Keep port `number` for what is to be plugged in there."""
        self._set_aside.add(number)

    def plug(self, number: int, carrier: Carrier, name: str) -> None:
        """Let `carrier` carry the frames of port `number`; faults know its link by `name`."""
        faulty = None if self._faults is None else self._faults.between(name, carrier, self._clock.now_ps)
        capture = self._capture
        tap = None if capture is None else lambda burst: capture.write_burst(number, Direction.OUTBOUND, burst)
        outlet = Outlet(faulty or carrier, self._switch.egress(number), tap)
        bursts = 1 if isinstance(faulty or carrier, Generous) else BURSTS_PER_ROUND
        line = _Line(number, faulty or carrier, outlet, bursts)
        line.cable = carrier if isinstance(carrier, Cable) else None
        line.faults = faulty
        self._lines[number] = line
        if faulty is not None:
            self._faulty[number] = line
        self._list_cables()
        self._switch.bring_up(number)
        self._poller.watch(carrier.fileno(), lambda mask: self._event(line, mask))

    def unplug(self, number: int) -> None:
        """Close the carrier of port `number`, and forget the addresses there."""
        line = self._lines.pop(number)
        self._faulty.pop(number, None)
        self._list_cables()
        self._poller.unwatch(line.carrier.fileno())
        line.carrier.close()
        self._switch.detach(number)

    def _list_cables(self) -> None:
        """Note where the cables' pipes are. One whose frames may not go up now is not looked at."""
        plain = [] if self._serve is None else [line for line in self._lines.values() if line.carrier is line.cable]
        self._others = [line for line in self._lines.values() if line not in plain]
        self._cables = [line for line in self._others if line.cable is not None and line.takes[0]]
        addresses = {line.number: line.cable.addresses for line in self._lines.values() if line.cable is not None}
        others, states = ([addresses[line.number][1] for line in lines] for lines in (self._cables, plain))
        self._other_states, self._states = np.array(others, np.int64), np.array(others + states, np.int64)
        self._plain, self._rows = plain, exchange.make_cables(len(plain))
        for place, line in enumerate(plain):
            line.place = place
            self._rows[place] = (line.number, *addresses[line.number], line.carrier.fileno(), 0, 0, -1)
        fields = self._rows.view(np.ndarray)  # reading fields of a recarray costs ten times as much
        self._full, self._rings, self._bad = fields["is_full"], fields["rings"], fields["bad_bytes"]
        self._places = np.zeros(len(self._lines) + 2, np.int64)

    def counters(self, number: int) -> dict[str, int]:
        """What the switch and the carrier count at port `number`."""
        return self._switch.port_counters(number) | self._lines[number].carrier.counters()

    def take(self, now_ps: int) -> bool:
        """Take what has come by cables, and what faults have held back until now; whether there was anything."""
        for line in list(self._faulty.values()):
            self._release(line)
        count = self._compiled.pipes_with_news(self._other_states, self._places) if self._cables else 0
        for line in [self._cables[place] for place in self._places[:count].tolist()]:
            self._take(line)
        return (self._plain and self.serve(0)) or count > 0

    def serve(self, due_ps: int) -> bool:
        """Take turns at plain cables until `due_ps`, or something but them needs attention, such as in the poller.

        Returns whether anything had come in the last turn.
        """
        assert self._serve is not None
        said = self._serve(
            self._tables, self._rows, PIPE_BYTES, self._places, BURSTS_PER_ROUND,
            self._poller.fileno(), self._events, self._scratch, self._clock.epoch_ns, due_ps,
        )  # fmt: skip
        for place in self._places[: said >> 1].tolist():
            self._hear(self._plain[place], self._rings[place], self._bad[place])
        return said & 1 != 0

    @property
    def are_plain(self) -> bool:
        """Whether all that is plugged in are plain cables."""
        return bool(self._plain) and not self._others

    def _hear(self, line: _Line, rings: int, bad_bytes: int) -> None:
        """What a turn has said of a plain cable."""
        assert line.cable is not None
        try:
            if rings:
                line.cable.ring()
            if bad_bytes >= 0:
                raise BadBurstError.of(bad_bytes)
        except (CableClosedError, BadBurstError) as error:
            self._fail(line, error)

    def transmit(self) -> None:
        """Send what waits at what is no plain cable, wherever there is room."""
        for line in self._others:
            if not (line.is_full or line.outlet.is_empty):
                self._transmit(line)

    def next_ps(self) -> int:
        """When `take` must be called although nothing has come."""
        return min((line.faults.next_ps() for line in self._faulty.values() if line.faults), default=NEVER_PS)

    def _release(self, line: _Line) -> None:
        """Let go what is due on a line with faults, and look away from one that is stalled."""
        assert line.faults is not None
        takes, had = line.faults.takes(), line.takes
        if takes != had:
            line.takes = takes
            self._list_cables()
            self._await(line)
        has_ended = any(now and not before for now, before in zip(takes, had, strict=True))
        if has_ended or line.faults.next_ps() <= self._clock.now_ps():
            self._take(line)
            if line.number in self._faulty:  # it has not failed meanwhile
                self._transmit(line)

    def rest(self) -> bool:
        """Before sleeping in the poller: whether it will tell of what comes."""
        return self._compiled.pipes_rest(self._states)

    def gather_s(self) -> float:
        """How long frames may gather after a sleep."""
        return max((line.carrier.gather_s() for line in self._lines.values()), default=0.0)

    def _event(self, line: _Line, mask: int) -> None:
        """The poller says that something can be read, or written."""
        if self._lines.get(line.number) is not line:
            return
        try:
            line.carrier.wake()
        except CableClosedError as error:
            while line.cable is not None and self._take(line):
                pass  # what it sent before it went
            self._fail(line, error)
            return
        if line.place >= 0:
            self._full[line.place] = 0  # the bell may mean room
        elif line.is_full and (line.cable is not None or mask & WRITABLE):  # a cable's bell may mean room
            self._transmit(line)
        if mask & ~WRITABLE and line.cable is None:
            self._take(line)

    def _take(self, line: _Line) -> bool:
        """Take a few bursts from one carrier; whether there was one."""
        now_ps, number, taken = self._clock.now_ps(), line.number, False
        try:
            for _ in range(line.bursts):
                burst = line.carrier.receive(self._buffer)
                if burst is None:
                    break
                taken = True
                if self._capture is not None:
                    self._capture.write_burst(number, Direction.INBOUND, burst)
                if self._recorder is None:
                    self._switch.receive(number, burst, now_ps)
                else:
                    now_ps = self._recorder.receive(self._switch, number, burst)
        except (CableClosedError, BadBurstError) as error:
            self._fail(line, error)
        return taken

    def _transmit(self, line: _Line) -> None:
        """Send what waits at one port; when its carrier is full, the poller says when to go on."""
        try:
            is_full = not line.outlet.send()
        except CableClosedError as error:
            self._fail(line, error)
            return
        if is_full != line.is_full:
            line.is_full = is_full
            self._await(line)

    def _await(self, line: _Line) -> None:
        """Tell the poller what to look for; a stalled direction must not wake it. Cables have bells instead."""
        if line.cable is None:
            up, down = line.takes
            self._poller.await_room(line.carrier.fileno(), line.is_full and down, readable=up)

    def _fail(self, line: _Line, error: Exception) -> None:
        if self._lines.get(line.number) is not line:
            return  # it has failed already
        self.unplug(line.number)
        self._lost(line.number, str(error))

    def close(self) -> None:
        """Unplug everything."""
        for number in list(self._lines):
            self.unplug(number)
