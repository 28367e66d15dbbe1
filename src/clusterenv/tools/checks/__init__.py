"""What can be wrong with a machine, a network or a worker, found before a run meets it."""
