"""The head: the process with the user's loop."""
