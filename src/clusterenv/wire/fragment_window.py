"""Limits how many messages with fragments a host may have on their way to the head.

A message costs the head ten times as much as one more worker's fragment inside it. So a host has
one message under way at a time: while the head keeps up, each fragment leaves as soon as it is
finished; otherwise, fragments that finish meanwhile leave together in the next message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from clusterenv.protocol.fragment_infos import PREFIX as INFOS
from clusterenv.protocol.fragments import FragmentPart


class FragmentWindow:
    """Knows which slots were sent and have not been asked for again: asking means they were taken.

    If the head asks for several fragments of a slot ahead, it asks again before it has taken any:
    at the beginning of a stream, a few more messages may be under way.
    """

    def __init__(self) -> None:
        self._sent: list[set[int]] = []

    @property
    def is_open(self) -> bool:
        """Whether the head has taken everything that was sent."""
        return not self._sent

    def sent(self, slots: Iterable[int]) -> None:
        """Note that a message with fragments of these slots has left."""
        self._sent.append(set(slots))

    def asked(self, slots: Iterable[int]) -> None:
        """Note that the head asks for these slots again, so it has taken their messages."""
        wanted = set(slots)
        self._sent = [message for message in self._sent if message.isdisjoint(wanted)]

    def clear(self) -> None:
        """Forget what was sent: nobody waits for it."""
        self._sent.clear()


def group_for_messages(parts: Sequence[FragmentPart]) -> list[list[FragmentPart]]:
    """``parts`` in few messages, each with ascending slots and one version."""
    streamed = [part for part in parts if part.request.asks_again]
    others = sorted((p for p in parts if not p.request.asks_again), key=_by_request_and_slot)
    groups = _group(others, _follows) + _group(streamed, _is_apart)
    return [sorted(group, key=lambda part: part.slots) for group in groups]


def _by_request_and_slot(part: FragmentPart) -> tuple[int, tuple[int, ...]]:
    return part.request.request, part.slots


def _group(
    parts: Sequence[FragmentPart], fits: Callable[[list[FragmentPart], FragmentPart], bool]
) -> list[list[FragmentPart]]:
    groups: list[list[FragmentPart]] = []
    for part in parts:
        if groups and _is_alike(groups[-1][0], part) and fits(groups[-1], part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _is_alike(one: FragmentPart, other: FragmentPart) -> bool:
    """Whether the same arrays can hold both."""
    return (
        one.version == other.version
        and one.request.num_steps == other.request.num_steps
        and _kinds_of(one) == _kinds_of(other)
    )


def _follows(group: list[FragmentPart], part: FragmentPart) -> bool:
    """Whether it follows in a rollout; a replacement may still fill a gap.

    If the head waits for some slots only and asks ahead, it may want one part before the other.
    """
    last = group[-1]
    is_apart = part.request.ahead and not part.request.together
    is_next = last.slots[-1] + 1 == part.slots[0]
    return last.request.request == part.request.request and is_next and not is_apart


def _is_apart(group: list[FragmentPart], part: FragmentPart) -> bool:
    """Whether its slots are new to the group, in a stream, where a slot may have two fragments."""
    return all(one.slots[-1] < part.slots[0] or part.slots[-1] < one.slots[0] for one in group)


def _kinds_of(part: FragmentPart) -> list[tuple[str, str]]:
    arrays = part.arrays.items()
    return [(name, array.dtype.str) for name, array in arrays if not name.startswith(INFOS)]
