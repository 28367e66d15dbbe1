"""A user who calls anything in any order that is allowed, and looks closely at what comes back."""

import itertools
import warnings

import numpy as np

from clusterenv.errors import WorkerLostError
from tests.simulation.stage import PaperPolicy
from tests.simulation.workers import reward_of
from tests.simulation.world import Violation


class GaveUpError(Exception):
    """The user's time-out is up."""


class User:
    """One thread of a program; it keeps of every slot what it saw last."""

    def __init__(self, stage):
        self._stage, self._world, self._session = stage, stage.world, stage.session
        self._collecting, self._num_envs = stage.collecting, stage.num_envs
        self._policy = PaperPolicy()
        self._seen = {}
        """By slot: the episode and step that the user saw last."""
        self._over = set()
        """The slots whose last row said that the env was lost."""
        self._gaps = set()
        """The slots of which fragments may have been dropped since."""
        self._loose = set()
        """The slots of which fragments came since the last row: steps go on after those."""
        self._called = {}
        """By slot: where the env was at the last call, and the number of that call."""
        self._can_collect = False
        self._wish = None
        """The length and the policy of the last fragments: what is owed does not fit others."""

    def run(self):
        """Some calls; Violation at what must not be."""
        self._do("reset")
        for _ in range(self._world.random.randint(2, 5)):
            self._do(self._world.random.choice(CALLS))

    def _do(self, name):
        world = self._world
        world.note("user:", name)
        for _ in range(world.random.randint(0, 3)):
            # What happens while the user computes.
            world.move()
        world.can_be_interrupted = True
        try:
            getattr(self, name)()
        except (GaveUpError, KeyboardInterrupt):
            world.can_be_interrupted = False
            self._abandon()
            self._do("reset")
        finally:
            world.can_be_interrupted = False

    # Steps.

    def mask(self):
        """Some slots alone."""
        self._collecting.forget_owed()
        self._gaps.update(range(self._num_envs))
        slots = sorted(self._world.random.sample(range(self._num_envs), 1))
        first = len(self._world.episodes)
        self._session.reset(slots, [None] * len(slots), None, 7)
        self._wait()
        self._session.batch.infos.take(_add)
        self._note_reset(slots, first)

    def reset(self):
        self._collecting.start_over()
        every, first = range(self._num_envs), len(self._world.episodes)
        self._session.reset(every, [None] * self._num_envs, None, 7)
        self._wait()
        self._session.batch.infos.take(_add)
        self._note_reset(every, first)
        self._can_collect = True

    def _wait(self):
        if self._world.goes_wrong(0.02) and not self._session.wait_until_idle(0.004):
            self._world.note("user: gives up")
            raise GaveUpError
        if not self._session.wait_until_idle(1_000.0):
            raise Violation("no answer within 1000 s")

    def _note_reset(self, slots, first):
        shown = self._shown()
        for slot in slots:
            episode, step = _position(shown[slot])
            if episode < first or step:
                raise Violation(f"slot {slot} was reset, and shows step {step} of {episode}")
            self._own(slot, episode)
            self._seen[slot] = episode, step
        self._over.difference_update(slots)
        self._gaps.difference_update(slots)
        self._loose.difference_update(slots)

    def _shown(self):
        """The observations of all slots."""
        return self._session.batch.observations(False).tolist()

    def _own(self, slot, episode):
        known = self._world.episodes[episode]
        if known.instance.slot != slot:
            raise Violation(f"slot {slot} shows an episode of slot {known.instance.slot}")
        return known

    def steps(self):
        for _ in range(self._world.random.randint(1, 4)):
            self._step()
        self._can_collect = False

    def _step(self):
        actions, session = np.zeros(self._num_envs, np.int64), self._session
        if not session.step_at_once(actions):
            if not session.fleet.is_in_lockstep:
                session.step_all(actions)
            self._wait()
        self._look_at(range(self._num_envs), session.batch.infos.take(_add))

    def _look_at(self, slots, infos):
        batch, lost = self._session.batch, infos.get("lost", ())
        flags = batch.rewards.tolist(), batch.terminated.tolist(), batch.truncated.tolist()
        rows, shown = list(zip(*flags)), self._shown()
        for slot in slots:
            self._judge(slot, _position(shown[slot]), *rows[slot], slot in lost)

    def _judge(self, slot, position, reward, terminated, truncated, lost):
        before, was_over = self._seen[slot], slot in self._over
        known = self._own(slot, before[0])
        self._world.note(f"slot {slot}: {before} -> {position}", "lost" if lost else "")
        is_loose = slot in self._loose
        self._loose.discard(slot)
        if lost:
            self._judge_loss(slot, before, position, (reward, terminated, truncated), is_loose)
            return
        self._over.discard(slot)
        episode, step = position
        if is_loose:
            self._own(slot, episode)
            ok = episode >= before[0] and reward == (reward_of(*position) if step else 0.0)
        elif was_over:
            self._own(slot, episode)
            ok = episode > before[0] and step == 0 and reward == 0.0
        elif before[1] == known.length:
            ok = episode == known.following and step == 0 and reward == 0.0
        else:
            ok = position == (before[0], before[1] + 1) and reward == reward_of(*position)
            ok = ok and terminated == (position[1] == known.length)
        if not ok or truncated:
            raise Violation(f"slot {slot} went from {before} to {position}, reward {reward}")
        self._seen[slot] = position

    def _judge_loss(self, slot, before, position, row, is_loose):
        if row != (0.0, False, True):
            raise Violation(f"slot {slot} was lost, and its row says {row}")
        instance = self._world.episodes[before[0]].instance
        if slot in self._over:
            raise Violation(f"slot {slot} is reported as lost twice")
        self._over.add(slot)
        if is_loose:
            return
        if not instance.ended_by:
            raise Violation(f"slot {slot} is reported as lost, and its env is there")
        if position != before:
            raise Violation(f"slot {slot} was lost at {before}, and shows {position}")
        if instance.answered > before and instance.ended_by == "worker":
            raise Violation(f"slot {slot} was answered with {instance.answered}, and lost that")

    def act(self):
        """Steps with the policy."""
        for _ in range(self._world.random.randint(1, 3)):
            newest = self._publish()
            self._session.act()
            self._wait()
            self._look_at(range(self._num_envs), self._session.batch.infos.take(_add))
            for version in self._session.take_acted().get("version", ()):
                if version:
                    self._judge_version(int(version), newest)
        self._can_collect = False

    def batches(self):
        stage, partial = self._stage, self._stage.partial
        self._collecting.start_over()
        first = len(self._world.episodes)
        partial.reset([None] * self._num_envs, 7)
        fresh = set(range(self._num_envs))
        for _ in range(self._world.random.randint(1, 8)):
            partial.assert_enough_under_way()
            slots = partial.receive()
            *_, infos = self._session.batch.results_of(slots)
            lost = [slot for slot, is_lost in zip(slots, infos.get("env_lost", ())) if is_lost]
            self._note_reset([slot for slot in slots if slot in fresh], first)
            self._look_at([slot for slot in slots if slot not in fresh], {"lost": lost})
            fresh.difference_update(slots)
            count = self._world.random.randint(1, len(slots))
            sent = sorted(self._world.random.sample(slots, count))
            if stage.num_envs - len(slots) + count < stage.batch_size:
                sent = slots
            partial.send(list(sent), np.zeros(len(sent), np.int64))
            if self._num_in_hand(partial) > self._num_envs - stage.batch_size:
                break
        self._session.wait_until_idle(1_000.0)
        self._abandon()
        self.reset()

    def _num_in_hand(self, partial):
        return self._num_envs - partial._num_under_way

    def _abandon(self):
        self._collecting.abandon()
        self._session.abandon()

    # Policies.

    def _publish(self):
        choice = self._world.random.random()
        if choice < 0.15:
            self._policy = PaperPolicy()
        elif choice < 0.6:
            self._policy.change()
        return self._session.publisher.publish(self._policy)

    def _judge_version(self, version, newest):
        publisher = self._session.publisher
        if not 0 < version <= publisher.version:
            raise Violation(f"version {version} acted, which nobody published")
        if publisher.policy_of(version) < publisher.policy_of(newest):
            raise Violation(f"version {version} acted, of a policy before that of {newest}")

    def rollout(self):
        self._rollout(self._num_envs)

    def some(self):
        self._rollout(self._world.random.randint(1, self._num_envs))

    def _rollout(self, wait_num):
        if not self._can_collect:
            self.reset()
        newest, length = self._publish(), self._world.random.choice([2, 2, 3])
        self._note_wish(length)
        self._loose.update(range(self._num_envs))
        # Not drawn, so that all other schedules stay what they were.
        ahead = wait_num == self._num_envs and len(self._world.episodes) % 2 == 0
        dropped = self._stage.dropped.dropped_steps
        self._collecting.collect(length, together=wait_num == self._num_envs, ahead=ahead)
        parts = self._collecting.wait_for(wait_num, 0.0)
        has_dropped = self._stage.dropped.dropped_steps > dropped
        if has_dropped:
            self._gaps.update(range(self._num_envs))
        slots = [slot for part in parts for slot in part.slots]
        if len(set(slots)) < len(slots) or len(slots) < wait_num:
            raise Violation(f"a rollout of {wait_num} slots has {slots}")
        for part in parts:
            self._judge_part(part, length, newest)
        if has_dropped:
            # What was dropped may also be what was to follow.
            self._gaps.update(range(self._num_envs))

    def _note_wish(self, length):
        wish = length, self._session.publisher.news().policy_id
        if wish != self._wish:
            self._gaps.update(range(self._num_envs))
        self._wish = wish

    def stream(self):
        if not self._can_collect:
            self.reset()
        newest = self._publish()
        self._note_wish(2)
        self._gaps.update(range(self._num_envs))
        self._loose.update(range(self._num_envs))
        stream = self._collecting.stream(2, self._world.random.randint(1, 2))
        for _ in range(self._world.random.randint(1, 6)):
            part = next(stream)
            self._judge_part(part, 2, None if newest is None else part.request.newest.version)
            if self._world.chance(0.3):
                self._publish()
                self._collecting.announce()
        stream.close()
        self._gaps.update(range(self._num_envs))

    def _judge_part(self, part, length, newest):
        asked = part.request.newest.version
        self._judge_version(part.version, min(asked, newest))
        if part.request.ahead and self._stage.pulls_all and part.version != asked:
            raise Violation(f"version {part.version} acted where {asked} was promised")
        arrays = part.arrays
        shown = arrays["observations/0"].tolist()
        all_rewards, all_ends = arrays["rewards"].tolist(), arrays["terminated"].tolist()
        self._world.note("fragment of", part.slots, "version", part.version)
        for column, slot in enumerate(part.slots):
            path = [_position(rows[column]) for rows in shown]
            if len(path) != length + 1:
                raise Violation(f"a fragment of {len(path) - 1} steps, not {length}")
            self._judge_begin(slot, path[0], part.request.request)
            for step, (before, after) in enumerate(itertools.pairwise(path)):
                known, ended = self._own(slot, before[0]), all_ends[step][column]
                following = (before[0], before[1] + 1)
                if following[1] == known.length:
                    following = (known.following, 0)
                reward = reward_of(before[0], before[1] + 1)
                if after != following or all_rewards[step][column] != reward:
                    raise Violation(f"slot {slot} went from {before} to {after} in a fragment")
                if ended != (following[1] == 0):
                    raise Violation(f"slot {slot} ended at {before}, or not")
            self._judge_call(slot, path[-1], part.request.request)
            self._seen[slot] = path[-1]
            self._gaps.discard(slot)
        part.release()

    def _judge_begin(self, slot, position, number):
        before = self._seen[slot]
        if position == before:
            return
        instance = self._own(slot, before[0]).instance
        is_same = self._own(slot, position[0]).instance is instance
        if position <= before:
            raise Violation(f"slot {slot} goes back from {before} to {position}")
        if slot in self._gaps:
            return
        if is_same or not instance.ended_by:
            raise Violation(f"slot {slot} jumps from {before} to {position}, and nothing was lost")
        if position[1]:
            raise Violation(f"slot {slot} starts over at {position}")

    def _judge_call(self, slot, position, number):
        called, at = self._called.get(slot, (0, None))
        if number < called and position > at:
            raise Violation(f"a call overtook a fragment of slot {slot}: {at} before {position}")

    def call(self):
        """Where all envs are, in another way."""
        self._session.call("where", (), {})
        number = self._session.asking.last_number
        try:
            self._wait()
        except WorkerLostError:
            self._abandon()
            self._gaps.update(range(self._num_envs))
            return
        values = self._session.take_values()
        if len(values) != self._num_envs:
            raise Violation(f"a call of {self._num_envs} slots has {len(values)} values")
        for slot, value in enumerate(values):
            episode, step = value
            # A replacement that nobody has reset yet is nowhere.
            if episode:
                self._own(slot, episode)
                self._called[slot] = number, (episode, step)

    def evaluate(self):
        """Whole episodes elsewhere: training is not disturbed."""
        newest = self._publish()
        self._collecting.evaluate([1] * self._num_envs, 7, True)
        try:
            self._wait()
        except WorkerLostError:
            self._abandon()
            self._gaps.update(range(self._num_envs))
            return
        values = self._session.take_values()
        if len(values) != self._num_envs:
            raise Violation(f"an evaluation of version {newest} has {len(values)} values")


CALLS = ["reset", "steps", "batches", "rollout", "some", "stream", "call", "act"]
CALLS += ["mask", "evaluate"]


def _position(row):
    """The episode and step that an observation shows."""
    return int(row[0]), int(row[1])


def _add(infos, info, slot):
    """As Gymnasium's, but only what matters here."""
    if info.get("env_lost"):
        infos.setdefault("lost", []).append(slot)
    return infos


def check(world, stage):
    """Violation if a user of this stage meets one; whatever else is raised is one, too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            User(stage).run()
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}") from error
