"""Metronome: real-time interaction models on a bounded KV cache."""
