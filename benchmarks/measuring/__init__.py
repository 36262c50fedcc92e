"""Measurements of speed and memory, which benchmarks/speed.py writes to results/bench.json."""
