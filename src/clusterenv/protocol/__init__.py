"""What is asked of envs and policies, and what comes back: the same words on every floor."""
