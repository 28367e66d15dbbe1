"""A worker: runs envs and a policy copy. It talks to its host only, and opens no socket."""
