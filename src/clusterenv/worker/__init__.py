"""A worker: runs envs and a policy copy, and answers the head."""
