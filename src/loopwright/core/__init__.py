"""Pure functions: no I/O, no clock, no unseeded randomness. Everything here can be tested by calling it."""
