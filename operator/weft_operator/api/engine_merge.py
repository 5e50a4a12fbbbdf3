"""What the engines of one role are started with: the settings of both roles, with those of the role in their place."""

import re
from collections.abc import Sequence

from weft_core.plan import Role
from weft_operator.api.engine import Engine
from weft_operator.api.engine_flags import EngineType, flag_name
from weft_operator.api.engine_parts import EnvVar, RoleEngine

_MERGED = frozenset({"args", "env"})
_ROLES: tuple[Role, ...] = ("prefill", "decode")


def role_settings(engine: Engine, role: Role) -> RoleEngine | None:
    """Return what one role has of its own."""
    return engine.prefill if role == "prefill" else engine.decode


def engine_of_role(engine: Engine, role: Role) -> Engine:
    """Return the settings of one role's engines, as if there were no other role."""
    own = role_settings(engine, role)
    merged: dict[str, object] = {"prefill": None, "decode": None}
    if own is not None:
        replaced = {name: getattr(own, name) for name in RoleEngine.model_fields if name not in _MERGED}
        merged |= {name: value for name, value in replaced.items() if value is not None}
        merged |= {"args": merged_args(engine.type, engine.args, own.args), "env": merged_env(engine.env, own.env)}
    return engine.model_copy(update=merged)


def measured_engine(engine: Engine) -> Engine:
    """Return the settings of the engines that are measured for both roles: the shared ones, with the least memory.

    Steps are measured without speculative decoding: how many drafts are accepted depends on the text, and prompts of a
    measurement are none that a model was trained on.
    """
    least = min(engine_of_role(engine, role).memory_fraction for role in _ROLES)
    return engine.model_copy(update={"prefill": None, "decode": None, "memory_fraction": least, "speculative": None})


def merged_args(engine: EngineType, shared: Sequence[str], own: Sequence[str]) -> list[str]:
    """Return the shared arguments without the flags that a role has, in whatever spelling, and the role's after them.

    Abbreviated flags are not recognized: of two the engine takes the last, which is the role's.
    """
    names = {name for arg in own if (name := flag_name(engine, arg)) is not None}
    kept: list[str] = []
    stays = True
    for arg in shared:
        name = flag_name(engine, arg)
        if name is not None:  # what follows up to the next flag are its values
            stays = not any(_same_flag(name, other) for other in names)
        if stays:
            kept.append(arg)
    return [*kept, *own]


def _same_flag(one: str, other: str) -> bool:
    """Return whether one of two flags sets what the other one does, or a part of it: a key of its JSON value."""
    shorter, longer = sorted((one, other), key=len)
    return longer == shorter or longer.startswith(f"{shorter}.")


def merged_env(shared: Sequence[EnvVar], own: Sequence[EnvVar]) -> list[EnvVar]:
    """Return the variables of both, a role's in the place of the shared one of its name, the rest of them at the end.

    Kubernetes replaces ``$(NAME)`` by a variable that stands before. So what a role's variable refers to is moved
    before it, and a role's variable before the first one that refers to it; the order is otherwise the author's.
    """
    values = {item.name: item for item in (*shared, *own)}
    of_role = {item.name for item in own}
    placed: dict[str, EnvVar] = {}

    def place(name: str, waiting: frozenset[str]) -> None:
        for reference in references(values[name].value):
            if reference in values and reference not in placed and reference not in waiting:
                place(reference, waiting | {reference})
        placed[name] = values[name]

    for name, item in values.items():
        if name not in placed and (name in of_role or not of_role.isdisjoint(references(item.value))):
            place(name, frozenset({name}))
        placed.setdefault(name, item)
    return list(placed.values())


def references(value: str) -> list[str]:
    """Return the names of the variables that Kubernetes puts into a value: ``$(NAME)``, but not ``$$(NAME)``."""
    return [name for name in re.findall(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", value) if name]
