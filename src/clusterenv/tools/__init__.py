"""``python -m clusterenv …``: a file per command, and what they share."""
