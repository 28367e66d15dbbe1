"""One machine: starts workers, calls them through shared memory, replaces the lost. No network."""
