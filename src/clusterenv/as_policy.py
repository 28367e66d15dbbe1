"""Makes a policy of whatever the user passes as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterenv.policies.base import Policy


class AsPolicy:
    """Wraps modules as policies, and remembers the last two, so that they stay the same objects.

    (One is trained, and another may be evaluated in between.)
    """

    def __init__(self) -> None:
        self._wrapped: list[tuple[Any, Policy]] = []

    def __call__(self, policy: Any) -> Policy:
        """``policy`` itself, or a policy that acts with it if it is a module."""
        _refuse_what_cannot_act(policy)
        if hasattr(policy, "act"):
            return policy  # type: ignore[no-any-return]
        for module, wrapped in self._wrapped:
            if module is policy:
                return wrapped
        wrapped = wrap_module(policy)
        self._wrapped = [*self._wrapped[-1:], (policy, wrapped)]
        return wrapped


_POLICY_MEMBERS = ("act", "weights", "load")


def _refuse_what_cannot_act(policy: Any) -> None:
    if isinstance(policy, type):
        name = policy.__name__
        raise TypeError(f"{name} is a class; pass an object as the policy: {name}(…)")
    missing = [name for name in _POLICY_MEMBERS if not hasattr(policy, name)]
    if 0 < len(missing) < len(_POLICY_MEMBERS) and "act" not in missing:
        raise TypeError(
            f"{type(policy).__name__} is not a policy: it lacks {' and '.join(missing)}; see "
            "clusterenv.Policy"
        )


def wrap_module(module: Any) -> Policy:
    """A policy from a ``torch.nn.Module``; TypeError if it is not one."""
    if not (hasattr(module, "state_dict") and callable(module)):
        raise TypeError(
            f"{module!r:.80} is not a policy: pass a clusterenv.Policy, or a torch.nn.Module "
            f"that returns a torch.distributions object{_advice_on(module)}"
        )
    from clusterenv.policies.torch import TorchPolicy

    return TorchPolicy(module)


def _advice_on(given: Any) -> str:
    if not isinstance(given, Mapping):
        return ""
    return (
        "; for a policy per agent, pass clusterenv.adapters.pettingzoo.per_agent({agent: policy})"
    )
