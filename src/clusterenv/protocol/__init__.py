"""Requests to envs and policies, and replies: the same words on every floor."""
