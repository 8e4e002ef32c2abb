"""From the name of a scheduling policy to its class: ours, or a user's own (rule S13)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points

from headway.core.policies import POLICIES
from headway.core.policy import Policy
from headway.errors import InvalidConfig

__all__ = ["ENTRY_POINTS", "make_policy"]

ENTRY_POINTS = "headway.policies"
"""Group in which an installed package names its policies."""


def make_policy(name: str, **options: object) -> Policy:
    """The policy of that name: one of ours, an entry point, or a class as `module:Class`.

    `options` are the arguments of ours; one's own is made without any. Raises `InvalidConfig`
    for a name that leads to no policy, saying why.
    """
    if name in POLICIES:
        return POLICIES[name](**options)
    try:
        made = _load(name)()
    except InvalidConfig:
        raise
    except Exception as error:  # a user's code may raise anything
        message = f"{name}: {type(error).__name__}: {error}"
        raise InvalidConfig("scheduling_policy", message) from error
    if not isinstance(made, Policy):
        raise InvalidConfig(
            "scheduling_policy", f"{name} is no subclass of headway.core.policy.Policy"
        )
    return made


def _load(name: str) -> Callable[[], object]:
    module, colon, attribute = name.partition(":")
    if colon:
        found: Callable[[], object] = getattr(importlib.import_module(module), attribute)
        return found
    for point in entry_points(group=ENTRY_POINTS, name=name):
        loaded: Callable[[], object] = point.load()
        return loaded
    raise InvalidConfig(
        "scheduling_policy",
        f"{name!r} is neither one of {', '.join(POLICIES)} nor module:Class, and no installed "
        f"package names it in its {ENTRY_POINTS} entry points",
    )
