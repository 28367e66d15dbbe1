"""Backends: build a worker's envs. One file per kind."""
