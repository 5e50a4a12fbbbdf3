"""Rules over spec.routing.params, made from the catalogue of policies, and the reference page of all policies."""

from collections.abc import Iterator
from typing import Any

from weft_core.policies.policy import Parameter, PolicyError, RoutingPolicy
from weft_core.policies.registry import BINDINGS, MEANINGS, MODES, ORDERS, POLICIES, QOS
from weft_operator.api.base import Rule

UNBOUNDED = 1e9
"""What a JSON number can say of an infinite bound."""


def settable(rule: RoutingPolicy) -> tuple[Parameter, ...]:
    """Return the parameters that spec.routing.params may hold: ampd and the mode of weft have fields of their own."""
    if rule.name == "ampd":
        return ()
    return tuple(parameter for parameter in rule.parameters if parameter.name != "mode")


def parameter_rules(field: str = "spec.routing.params", *, optional: bool = False) -> tuple[Rule, ...]:
    """Return a rule per policy: only its parameters, each within its range; policy and params may be ``optional``."""
    return tuple(_rule(rule, field, optional) for rule in POLICIES.values())


def _rule(rule: RoutingPolicy, field: str, optional: bool) -> Rule:
    allowed = settable(rule)
    names = ", ".join(_shown(allowed)) or "none"
    why = "; set spec.routing.alpha and beta" if rule.name == "ampd" else ""
    absent = "!has(self.policy) || !has(self.params) || " if optional else ""
    return Rule(
        f"{absent}self.policy != '{rule.name}' || self.params.all(k, {_cel(allowed)})",
        f"{field}: parameters of {rule.name}: {names}{why}",
        lambda routing: routing.policy != rule.name or _fit(routing.params or {}, allowed),
    )


def _fit(given: dict[str, float], allowed: tuple[Parameter, ...]) -> bool:
    known = {parameter.name: parameter for parameter in allowed}
    try:
        for name, value in given.items():
            if name not in known:
                return False
            known[name].check(value)
    except PolicyError:
        return False
    return True


def _by_range(allowed: tuple[Parameter, ...]) -> dict[tuple[float, float], list[str]]:
    ranges: dict[tuple[float, float], list[str]] = {}
    for parameter in allowed:
        low, high = float(max(parameter.low, -UNBOUNDED)), float(min(parameter.high, UNBOUNDED))
        ranges.setdefault((low, high), []).append(parameter.name)
    return ranges


def _cel(allowed: tuple[Parameter, ...]) -> str:
    """Return the condition on a name ``k``; comparing with each name of a range keeps the cost of the rule low."""
    if not allowed:
        return "false"
    return " || ".join(
        f"(k in {names} && self.params[k] >= {low!r} && self.params[k] <= {high!r})"
        for (low, high), names in _by_range(allowed).items()
    )


def _shown(allowed: tuple[Parameter, ...]) -> Iterator[str]:
    for (low, high), names in _by_range(allowed).items():
        shown = names if len(names) < 9 else [names[0], "…", names[-1]]
        yield f"{', '.join(shown)} ({low:g} to {high:g})"


def policies_page() -> str:
    """Return docs/reference/policies.md."""
    return "\n".join([*_head(), *_routing(), *_others(), *_reasons()]) + "\n"


def _head() -> list[str]:
    return [
        "# Policies",
        "",
        "Made from the code by `make generate`; do not edit. [How to choose](../policies.md).",
        "",
        "## Routing: where a prefill runs",
        "",
        "| `spec.routing.policy` | what it does | queue order | from |",
        "| --- | --- | --- | --- |",
        *(f"| `{rule.name}` | {rule.summary} | `{rule.order}` | {rule.source} |" for rule in POLICIES.values()),
        "",
        f"Modes of `weft`: {', '.join(f'`{mode}`' for mode in MODES)}.",
        "",
    ]


def _routing() -> Iterator[str]:
    for rule in POLICIES.values():
        if rule.parameters:
            yield from (f"### `{rule.name}`", "", *_parameters(rule.parameters), "")


def _parameters(parameters: tuple[Parameter, ...]) -> Iterator[str]:
    yield "| parameter | default | range | unit | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for p in parameters:
        yield f"| `{p.name}` | {p.default:g} | {p.low:g} to {p.high:g} | {p.unit} | {p.meaning} |"


def _others() -> Iterator[str]:
    tables: tuple[tuple[str, str, Any], ...] = (
        ("Bindings: the decode worker of a new session", "`spec.routing.binding`", BINDINGS),
        ("Queue orders: which prefill runs next", "`spec.routing.order`", ORDERS),
        ("Quality of service", "rule", QOS),
    )
    for title, column, rules in tables:
        yield from (f"## {title}", "", f"| {column} | what it does | from |", "| --- | --- | --- |")
        yield from (f"| `{rule.name}` | {rule.summary} | {rule.source} |" for rule in rules.values())
        yield ""
    for rule in QOS.values():
        yield from (f"### `{rule.name}`", "", *_parameters(rule.parameters), "")


def _reasons() -> Iterator[str]:
    yield from ("## Reasons", "", "What `X-Weft-Reason`, the logs and `weft_router_decisions_total` say.", "")
    yield from ("| reason | meaning |", "| --- | --- |")
    yield from (f"| `{name}` | {meaning} |" for name, meaning in MEANINGS.items())
