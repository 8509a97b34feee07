"""Benchmarks of Loopwright beside its peers. `loopwright bench` lists and runs them; docs/benchmarks.md says how.

This package stands in the source checkout and is not installed. `workers/` is what runs in the measured processes;
those of peers run in the peer's own environment, so they and what they import use nothing of Loopwright.
"""
