"""The only floor with threads, sockets and clocks."""
