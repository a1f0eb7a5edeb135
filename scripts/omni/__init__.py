"""Tiny stand-ins of published interaction models: their architecture, configuration and file layout, random weights."""
