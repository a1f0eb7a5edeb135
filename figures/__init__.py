"""Figures drawn from traces alone."""
