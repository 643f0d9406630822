"""The switch: forward, or aggregate and splice."""
