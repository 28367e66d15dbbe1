"""Policies: act on observations, on the workers. One file per kind."""
