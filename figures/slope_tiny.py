"""Claims C6 and C7 at the paper's scale: the same slope for hundreds of sessions of a model of two layers."""

from figures.slope import draw, points

NAME, EXPERIMENT = "slope_tiny", "capacity_tiny"
__all__ = ["EXPERIMENT", "NAME", "draw", "points"]
