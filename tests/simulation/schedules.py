"""A schedule is a number: it says what the run is like, what goes wrong, and when."""

import gc
import logging

from tests.simulation.stage import CLOCK, liars_stage, local_stage, remote_stage, simulated
from tests.simulation.user import check
from tests.simulation.world import Violation, World

KINDS = {"local": local_stage, "remote": remote_stage, "liars": liars_stage}


def play(seed, kind="local", is_traced=False):
    """Play one schedule; Violation with the seed if anything happens that must not."""
    world = CLOCK.world = World(seed, is_traced)
    world.drowsiness = world.random.choice([0.0, 0.5, 0.8])
    world.look_every_s = world.random.choice([0.5, 1.0])
    stage = KINDS[kind](world)
    world.trouble_left = world.random.choice([0, 1, 1, 2, 3])
    try:
        check(world, stage)
    except Violation as violation:
        raise Violation(f"{violation} (python -m tests.simulation {kind} --seed {seed})") from (
            violation.__cause__ or violation
        )
    return world


BLOCK = 500


def play_block(block):
    """The violations of a block of schedules: of which kind, and the first seed."""
    kind, first = block
    found = []
    logging.disable(logging.CRITICAL)
    # A schedule leaves cycles behind, and to look for them after each costs a third of the time.
    gc.disable()
    gc.collect()
    with simulated():
        for seed in range(first, first + BLOCK):
            try:
                play(seed, kind)
            except Violation as violation:
                found.append(str(violation))
    return found
