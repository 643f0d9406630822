"""The switch: forward, or aggregate and splice."""

from netreduce.switch.registry import RingPart, RingSpec
from netreduce.switch.switch import Switch
from netreduce.switch.tables import SwitchLimits

__all__ = ["RingPart", "RingSpec", "Switch", "SwitchLimits"]
