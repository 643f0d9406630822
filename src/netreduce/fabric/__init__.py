"""What lies between nodes: the node protocol, links, faults and the simulator."""

from netreduce.fabric.ecn import EcnMarking
from netreduce.fabric.faults import Faults
from netreduce.fabric.link import Line, Link
from netreduce.fabric.node import Node
from netreduce.fabric.recording import Recording
from netreduce.fabric.rules import Rule, SeenFrame
from netreduce.fabric.simulator import Simulator, StuckError

__all__ = [
    "Recording",
    "EcnMarking",
    "Faults",
    "Line",
    "Link",
    "Node",
    "Rule",
    "SeenFrame",
    "Simulator",
    "StuckError",
]
