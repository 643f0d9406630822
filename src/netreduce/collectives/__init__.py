"""Collectives over verbs: schedules, the message window, the engine that runs them."""
