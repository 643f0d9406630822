"""Bytes and headers: what a frame of RoCEv2 looks like, and how frames lie in memory."""
