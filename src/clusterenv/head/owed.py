"""Which fragments are under way, by slot and request."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence


class Owed:
    """The numbers of the requests that still owe a fragment of each slot, in order."""

    def __init__(self) -> None:
        self._numbers: defaultdict[int, list[int]] = defaultdict(list)

    def add(self, number: int, slots: Sequence[int]) -> None:
        """A fragment of each of these slots was asked for by this request."""
        for slot in slots:
            self._numbers[slot].append(number)

    def settle(self, number: int, slots: Sequence[int]) -> list[int]:
        """These fragments have come, or will not come; returns the slots that still owed them."""
        owing = [slot for slot in slots if number in self._numbers[slot]]
        for slot in owing:
            self._numbers[slot].remove(number)
        return owing

    def write_off(
        self, number: int, slots: Sequence[int], is_doomed: Callable[[int, int], bool]
    ) -> bool:
        """Expect no fragments of this request, nor of later ones that are doomed with it.

        Args:
            number: The request that will bring no fragments …
            slots: … of these slots.
            is_doomed: (slot, number) → whether a request will meet the same loss.

        Returns:
            Whether a later request is going to bring a fragment of one of these slots.
        """
        owing = self.settle(number, slots)
        later = [(slot, one) for slot in owing for one in self._numbers[slot] if one > number]
        doomed = [(slot, one) for slot, one in later if is_doomed(slot, one)]
        for slot, one in doomed:
            self._numbers[slot].remove(one)
        return len(doomed) < len(later)

    def count(self) -> Counter[int]:
        """How many fragments of each slot are under way."""
        return Counter({slot: len(numbers) for slot, numbers in self._numbers.items()})

    def __bool__(self) -> bool:
        return any(self._numbers.values())

    def clear(self) -> None:
        """Forget all of them."""
        self._numbers.clear()
