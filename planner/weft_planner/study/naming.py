"""Read layouts and policies as people write them: ``P4x2 D8x1``, ``weft/imd+edf``."""

import re
from collections.abc import Sequence
from dataclasses import replace

from weft_core.layouts import (
    LAYOUTS,
    WORKER_ROLES,
    LayoutKind,
    PlannedGroup,
    PlannedPolicy,
    kind_of,
    role_letters,
)
from weft_core.parallelism import parse_degree
from weft_core.policies.registry import BINDINGS, DEFAULT_MODE, MODES, ORDERS, POLICIES
from weft_planner.simulation.layout import PolicyChoice

_GROUP = re.compile(r"([PDBC])(\d+|\[[a-z0-9]+\])x(\d+)(?:@(\S+))?")
_ROLES = {role_letters(kind)[role]: role for kind in LAYOUTS for role in WORKER_ROLES}
LAYOUT_FORM = (
    "write P4x2 D8x1 (role, degree x workers), P8x1 D[dp16ep]x2, B4x4 (both roles), co-located C4x4; "
    "@POOL behind it names a pool"
)


class NamingError(ValueError):
    """Report a layout or policy that cannot be parsed; the message names the part and the form."""


def layout_from(text: str, *, pools: Sequence[str]) -> tuple[LayoutKind, tuple[PlannedGroup, ...]]:
    """Return the kind and the groups of a layout; without a pool's name a group is of the first pool.

    Raises:
        NamingError: a part has another form, roles do not go together, or a pool is not there.
    """
    words = text.split()
    found = [_GROUP.fullmatch(word) for word in words]
    if not words or None in found:
        wrong = next((word for word, match in zip(words, found, strict=True) if match is None), text)
        raise NamingError(f"{wrong!r} is no group of workers; {LAYOUT_FORM}")
    groups: list[tuple[str, PlannedGroup]] = []
    for match in found:
        assert match is not None  # noqa: S101  sifted out above
        letter, degree, replicas, pool = match.groups()
        try:
            split = parse_degree(degree.strip("[]"))
        except ValueError as error:
            raise NamingError(f"{match.group()!r}: {error}; {LAYOUT_FORM}") from None
        if int(replicas) < 1:
            raise NamingError(f"{match.group()!r}: degree and workers are 1 or more; {LAYOUT_FORM}")
        if pool is not None and pool not in pools:
            raise NamingError(f"{match.group()!r}: there is no pool {pool!r}; the pools are {', '.join(pools)}")
        groups.append((letter, PlannedGroup(_ROLES[letter], split, int(replicas), pool or pools[0])))
    letters = {letter for letter, _ in groups}
    if ("C" in letters and len(letters) > 1) or letters in ({"P"}, {"D"}):
        raise NamingError(f"{text!r}: a layout has P and D groups, or B beside them or alone, or only C; {LAYOUT_FORM}")
    found_groups = tuple(group for _, group in groups)
    return kind_of(found_groups), found_groups


def policy_from(text: str, *, like: PolicyChoice | None = None) -> PolicyChoice:
    """Return the policy that ``name[/mode][+order][@binding]`` names; the rest is the rule's own, or ``like``'s.

    Raises:
        NamingError: there is no such policy, mode, order or binding.
    """
    rest, _, binding = text.partition("@")
    rest, _, order = rest.partition("+")
    route, _, mode = rest.partition("/")
    for what, name, known in (
        ("policy", route, POLICIES),
        ("mode", mode or DEFAULT_MODE, MODES),
        ("order", order or "fcfs", ORDERS),
        ("binding", binding or "kv-headroom", BINDINGS),
    ):
        if name not in known:
            raise NamingError(f"{what} {name!r} is not one of {', '.join(known)}; write NAME[/MODE][+ORDER][@BINDING]")
    if mode and route != "weft":
        raise NamingError(f"policy {route!r} has no modes; leave /{mode} out")
    base = like or PolicyChoice()
    return replace(
        base,
        route=route,
        mode=(mode or DEFAULT_MODE) if route == "weft" else "",
        order=order or POLICIES[route].order,
        binding=binding or (like.binding if like is not None else POLICIES[route].binding),
        params=base.params if route == base.route else {},
    )


def policy_of(planned: PlannedPolicy) -> PolicyChoice:
    """Return the rules that a plan was predicted with."""
    return PolicyChoice(
        route=planned.route,
        mode=planned.mode,
        order=planned.order,
        binding=planned.binding,
        chunk_share=planned.chunk_share,
    )
