"""Experiments: Hydra configuration in, traces out."""
