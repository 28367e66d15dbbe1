"""What the report of ``rollout_throughput.py`` says besides the numbers."""

from comparison import Systems

SYSTEMS_COMPARED = Systems(
    labels={
        "ceiling": "ceiling: bare loops",
        "recorded": "ceiling, recorded",
        "rollout-shm": "ClusterEnv.rollout",
        "rollout-tcp": "ClusterEnv.rollout, tcp",
        "stream-shm": "ClusterEnv.stream",
        "stream-tcp": "ClusterEnv.stream, tcp",
        "rllib": "RLlib EnvRunners",
        "torchrl": "TorchRL MultiSyncCollector",
        "torchrl-vector": "TorchRL, Gymnasium vector",
    },
    compared_with={
        "ceiling": "of ceiling",
        "recorded": "(recorded)",
        "rllib": "vs RLlib",
        "torchrl": "vs TorchRL",
        "torchrl-vector": "(vector)",
    },
    colours={
        "rollout-shm": "#d1495b",
        "rollout-tcp": "#edae49",
        "stream-shm": "#e38b7f",
        "stream-tcp": "#f3cf94",
        "rllib": "#66788a",
        "torchrl": "#8fa1b3",
        "torchrl-vector": "#b8c4d0",
    },
    # With 2 workers.
    promises=[
        ("LunarLander-v3", 64, "rollout-shm", "ceiling", 0.85),
        ("LunarLander-v3", 64, "rollout-shm", "rllib", 2.0),
        ("LunarLander-v3", 64, "rollout-shm", "torchrl", 5.0),
    ],
)
NOTES = """\
- Steps are real transitions. MLP: actor and critic of two tanh layers with 64 units each, nothing
  shared, 32 envs per worker, fragments of 128 steps. Pong (frame skip 4, grey 84x84, stack of 4):
  two convolutions (16 of 8x8, 32 of 4x4) and a layer of 256, shared, 8 envs per worker, fragments
  of 32 steps. The same layers and envs in all systems; initial weights everywhere, so that
  episodes are those of a policy that has learnt nothing. Maths is single-threaded everywhere.
- Ceiling: as many independent processes as workers, each with `env.step` and `act` of the same
  `TorchPolicy` that ClusterEnv's workers get, in a bare loop that keeps nothing, without any
  communication, from a common start. "recorded" does the same through ClusterEnv's own `Sampler`,
  which keeps every transition, and throws it away.
- Actions are drawn by each system's own means: `clusterenv.distributions.Categorical`,
  `torch.distributions.Categorical` in RLlib and TorchRL.
- ClusterEnv publishes changed weights before every rollout, and in a stream after as many steps as
  a rollout has; the host pulls each version. "tcp": `shared_memory=False`, the host in a process
  of its own behind an encrypted connection.
- RLlib: 2 EnvRunners, only sampling, fragments of 2048 steps per runner (64 steps of 32 envs), as
  is common with RLlib; one request at a time to both, all episodes come back to the driver. No
  weights are sent, and its runners evaluate the actor only. In its favour, both.
- TorchRL: MultiSyncCollector with the same fragments as ClusterEnv; no weights are sent. Envs in a
  SerialEnv, as its manual does; "Gymnasium vector" wraps a `SyncVectorEnv` without autoreset.
- Each peer has its own virtual environment, and the versions below are those in it.
- Steps per second are medians over the rounds. Ratios are taken within each round, where all
  systems have seen the same machine, and then the median; vs 2.00 is twice as many steps.
- "not run": its virtual environment is missing. "failed": it raised or took longer than the
  time-out.
"""
