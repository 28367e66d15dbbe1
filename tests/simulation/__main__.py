"""``python -m tests.simulation local --seed 7`` shows a schedule; without a seed it plays many."""

import argparse
import multiprocessing
import sys
import time

from tests.simulation.schedules import BLOCK, KINDS, play, play_block
from tests.simulation.stage import simulated


def play_many(kinds, first, count, processes):
    """Play ``count`` schedules from the seed ``first`` on; whether all was well."""
    # Remote ones cost twice as much: half are local.
    turns = [kinds[0], *kinds]
    numbers = range(first // BLOCK, -(-(first + count) // BLOCK))
    blocks = [(turns[n % len(turns)], n * BLOCK) for n in numbers]
    started_at, num_played, num_bad = time.monotonic(), 0, 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for found in pool.imap_unordered(play_block, blocks):
            num_played += BLOCK
            num_bad += len(found)
            for text in found[:3]:
                print(text, flush=True)
            rate = num_played / (time.monotonic() - started_at)
            print(f"{num_played:,} schedules, {rate:,.0f} a second, {num_bad} violations", end="\r")
    print()
    return not num_bad


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--seed", type=int, help="show this schedule alone")
    parser.add_argument("--first", type=int, default=0, help="the first seed of many")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    if args.seed is None:
        kinds = [*KINDS] if args.kind == "all" else [args.kind]
        sys.exit(not play_many(kinds, args.first, args.count, args.processes))
    with simulated():
        play(args.seed, args.kind, is_traced=True)
    print("all is well")


if __name__ == "__main__":
    main()
