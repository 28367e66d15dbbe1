"""Finds what is wrong with a machine, a network or a worker before a run meets it."""
