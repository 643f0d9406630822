"""Testbeds in virtual time: machines with NICs, engines and switches of this package, packet by packet."""
