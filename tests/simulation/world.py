"""What happens, and when: one random generator decides, so that a seed is a whole schedule."""

import itertools
import random
from dataclasses import dataclass, field

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.3, 0.6


class Violation(Exception):
    """Something happened that must not."""


@dataclass
class Instance:
    """One env object, in one worker process."""

    number: int
    slot: int
    ended_by: str = ""
    """How it ended: with its worker, with its host, or since its slot was dealt anew."""
    answered: tuple[int, int] = (0, 0)
    """The episode and step of the last row that its worker has answered for."""


@dataclass
class Episode:
    instance: Instance
    length: int
    following: int = 0
    """The episode that began by itself when this one ended."""


@dataclass
class World:
    """Time, randomness, the truth about envs, and all that can happen next."""

    seed: int
    is_traced: bool = False
    now: float = 1_000.0
    trouble_left: int = 0
    """How many more things go wrong."""
    instances: list = field(default_factory=list)
    episodes: list = field(default_factory=lambda: [None])
    actors: list = field(default_factory=list)
    """Each has ``moves()``: what it can do now, as callables."""
    trace: list = field(default_factory=list)
    num_moves: int = 0
    liar: str = ""
    """The host that adds something to what it collects."""
    can_be_interrupted: bool = False
    """Whether Ctrl-C may come now."""
    drowsiness: float = 0.0
    """The chance that one thing more happens before whoever waits for something looks at it."""
    look_every_s: float = 0.5
    """How often hosts look at workers that do not say anything."""

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self._pause_s = _SHORTEST_PAUSE_S

    # Time, as modules see it.

    def monotonic(self):
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds):
        self.now += seconds

    # What happens.

    def note(self, *what):
        if self.is_traced:
            text = " ".join(map(str, what))
            self.trace.append(text)
            print(f"{self.now:10.3f}  {text}")

    def chance(self, share):
        return self.random.random() < share

    def goes_wrong(self, share):
        """Whether something goes wrong now, which it does only so often."""
        if self.trouble_left > 0 and self.random.random() < share:
            self.trouble_left -= 1
            return True
        return False

    def move(self):
        """Something happens, or time passes."""
        self.num_moves += 1
        if self.trouble_left > 0:
            self._suffer()
        if self.num_moves > 4_000:
            raise Violation("it goes on for ever")
        actors, rand = self.actors, self.random.random
        first = int(rand() * len(actors))
        for actor in itertools.chain(actors[first:], actors[:first]):
            if moves := actor.moves():
                self.now += 0.001
                self._pause_s = _SHORTEST_PAUSE_S
                moves[int(rand() * len(moves)) if len(moves) > 1 else 0]()
                return
        # The longer nothing happens, the longer it may be until something does.
        self.now += self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _suffer(self):
        """Something may go wrong at any time."""
        if self.can_be_interrupted and self.goes_wrong(0.005):
            self.note("Ctrl-C")
            raise KeyboardInterrupt
        if self.actors and self.goes_wrong(0.02):
            self.random.choice(self.actors).suffer()

    def wait(self, timeout_s, is_over):
        """Let things happen until ``is_over`` or time is up; whether it is over.

        Whoever waits may be slow to wake up: then more has happened when it looks.
        """
        deadline = self.now + timeout_s
        while not is_over():
            if self.now >= deadline:
                return False
            self.move()
        while self.random.random() < self.drowsiness and self.now < deadline:
            self.move()
        return True

    # Envs.

    def new_instance(self, slot):
        self.instances.append(Instance(len(self.instances), slot))
        return self.instances[-1]

    def new_episode(self, instance):
        self.episodes.append(Episode(instance, self.random.randint(2, 4)))
        return len(self.episodes) - 1
