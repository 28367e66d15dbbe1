"""A policy on its way to where it acts."""

from __future__ import annotations

from clusterenv.protocol.message import Message


class TakePolicy(Message):
    """The policy that acts from now on (pickled), and the layout of its weights."""

    policy_id: int
    policy: bytes
    layout: bytes
