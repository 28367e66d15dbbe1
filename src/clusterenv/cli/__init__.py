"""``python -m clusterenv …``. One file per command."""
