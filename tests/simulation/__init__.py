"""The decisions of head and hosts, in any order of events: no process, no socket, virtual time.

Real are all classes that decide: at the head the session, its recovery and collecting, the fleets
and what they know of hosts; on a host all but processes and shared memory. Simulated are workers,
links, engines and time. Beside it a model knows what each env did, and judges every row.
"""
