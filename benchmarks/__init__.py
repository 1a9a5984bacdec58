"""Benchmarks: the package against the hand-written limit, in the same run, with the same work asserted."""
