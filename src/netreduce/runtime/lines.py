"""The switch's ports in live runs: bursts between each port's carrier and the switch.

Nothing here waits: what a full carrier refuses stays in that port's bounded egress queue, and what does not fit there
is dropped and counted by the switch. Cables are looked at in every round; other carriers when the poller says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from netreduce.runtime.cable import BadBurstError, Cable, CableClosedError, Outlet, load, make_burst_buffer
from netreduce.runtime.carrier import Carrier
from netreduce.runtime.clock import Clock
from netreduce.runtime.live_faults import FaultyCarrier, LiveFaults
from netreduce.runtime.poller import WRITABLE, Poller
from netreduce.runtime.tracing import Recorder
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
    is_full: bool = False
    cable: Cable | None = None  # the carrier, or what is behind its faults, if that is a cable
    faults: FaultyCarrier | None = None  # the carrier itself, if it has faults
    takes: tuple[bool, bool] = (True, True)  # what the poller was told of stalls


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
        line = _Line(number, faulty or carrier, Outlet(faulty or carrier, self._switch.egress(number), tap))
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
        """Note where the cables' rings are. One whose frames may not go up now is not looked at."""
        self._cables = [line for line in self._lines.values() if line.cable is not None and line.takes[0]]
        states = [line.cable.state_address for line in self._cables if line.cable is not None]
        self._states, self._places = np.array(states, np.int64), np.zeros(len(states), np.int64)

    def counters(self, number: int) -> dict[str, int]:
        """What the switch and the carrier count at port `number`."""
        return self._switch.port_counters(number) | self._lines[number].carrier.counters()

    def take(self) -> bool:
        """Take what has come by cables; whether there was anything."""
        count = self._compiled.pipes_with_news(self._states, self._places)
        for line in [self._cables[place] for place in self._places[:count].tolist()]:
            self._take(line)
        return count > 0

    def transmit(self) -> None:
        """Send what waits, wherever there is room, and let go what faults have held back until now."""
        for line in list(self._faulty.values()):
            self._release(line)
        for line in list(self._lines.values()):
            if not (line.is_full or line.outlet.is_empty):
                self._transmit(line)

    def next_ps(self) -> int:
        """When `transmit` must be called although nothing has come."""
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
        if line.is_full and (line.cable is not None or mask & WRITABLE):  # a cable's bell may mean room
            self._transmit(line)
        if mask & ~WRITABLE and line.cable is None:
            self._take(line)

    def _take(self, line: _Line) -> bool:
        """Take a few bursts from one carrier; whether there was one."""
        now_ps, number, taken = self._clock.now_ps(), line.number, False
        try:
            for _ in range(BURSTS_PER_ROUND):
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
