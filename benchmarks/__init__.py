"""Timings, side by side and by hand: `python -m benchmarks --help`. Nothing here is a test."""
