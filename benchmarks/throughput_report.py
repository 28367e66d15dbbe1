"""What the report of ``step_throughput.py`` says besides the numbers."""

from comparison import Systems

# With 64 envs and 2 workers, for `step` and for half batches.
_FLOORS = [
    ("LunarLander-v3", "ceiling", 0.80),
    ("LunarLander-v3", "async", 8.0),
    ("LunarLander-v3", "sb3", 6.0),
    ("CartPole-v1", "ceiling", 0.60),
    ("Pong", "ceiling", 0.90),
]
SYSTEMS_COMPARED = Systems(
    labels={
        "ceiling": "ceiling: bare loops",
        "ceiling-resets": "ceiling, resets counted",
        "ceiling-lockstep": "bare loops in lockstep",
        "bare-head": "bare head and loops",
        "sync": "SyncVectorEnv",
        "async": "AsyncVectorEnv",
        "sb3": "SB3 SubprocVecEnv",
        "cluster-shm": "ClusterEnv",
        "cluster-tcp": "ClusterEnv, tcp",
        "cluster-partial": "ClusterEnv, half batches",
    },
    compared_with={
        "ceiling": "of ceiling",
        "ceiling-resets": "(resets counted)",
        "ceiling-lockstep": "(in lockstep)",
        "bare-head": "(bare head)",
        "sync": "vs Sync",
        "async": "vs Async",
        "sb3": "vs SB3",
    },
    colours={
        "sync": "#b8c4d0",
        "async": "#8fa1b3",
        "sb3": "#66788a",
        "cluster-shm": "#d1495b",
        "cluster-tcp": "#edae49",
        "cluster-partial": "#e38b7f",
    },
    promises=[
        *[(env, 64, "cluster-shm", other, floor) for env, other, floor in _FLOORS],
        ("LunarLander-v3", 64, "cluster-partial", "cluster-shm", 1.0),
        *[(env, 64, "cluster-partial", other, floor) for env, other, floor in _FLOORS],
    ],
)
NOTES = """\
- Steps are slot-steps: num_envs per vector step, batch_size per `recv`. All systems build the same
  envs (`gymnasium.make`, so with its checker and time limit; Pong: frame skip 4, grey 84x84, stack
  of 4) and get the same random actions, drawn beforehand. Maths is single-threaded everywhere.
- Ceiling: as many independent processes as workers, each stepping its share of the envs in a bare
  loop, without any communication; it counts `env.step` calls. Under `NEXT_STEP` autoreset, the
  default of the Gymnasium systems and of ClusterEnv, a reset takes a slot's place in a step; the
  line "resets counted" counts them for the ceiling too and is the stricter yardstick.
- Bare loops in lockstep: the same loops, but after each turn over its envs a process waits for the
  others, through a word in shared memory, and nothing else is said: the best that any lockstep can
  do on this machine.
- Bare head and loops: bare loops in lockstep again, but a head gives them their actions and takes
  observations, rewards and flags, through shared memory; no checks, infos or errors, and nobody may
  die. From the ceiling to bare loops in lockstep, waiting for the slowest is lost; from there to
  the bare head, what any lockstep in Python has to do; only the rest is ClusterEnv's.
- SB3 resets within the step and starts by fork here (its default imports torch once per env; the
  steps are the same). AsyncVectorEnv and SB3 run one process per env, whatever the workers.
- Steps per second are medians over the rounds. Ratios are taken within each round, where all
  systems have seen the same machine, and then the median; vs 2.00 is twice as many steps.
- Half batches: `batch_size` = num_envs / 2 with `recv` and `send`.
- "not run": a system with one process per env is left out where its processes would need more
  than half of the memory available, or number more than max_env_processes; and any system whose
  package is not installed. "failed": it raised or took longer than the time-out.
"""
