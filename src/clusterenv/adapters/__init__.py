"""Adapters: ClusterEnv in the words of other libraries. One file per library."""
