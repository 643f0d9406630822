"""Randomised long runs of NICs and switch in the simulator, with checkers, replayable from a seed."""
