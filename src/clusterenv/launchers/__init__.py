"""Launchers: start, watch and stop hosts on an engine. One file or folder per engine."""
