"""Launchers: start, watch and stop workers on an engine. One file per engine."""
