"""Name every routing rule, binding and queue order, with its code, source and parameters.

The names are what a service writes into ``spec.routing``; docs/reference/policies.md is made from this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from weft_core.policies import (
    always,
    ampd,
    ampd_window,
    codes,
    early_rejection,
    edf,
    fair_share,
    fcfs,
    fixed_x,
    hedge,
    kv_aware,
    kv_headroom,
    latency_cost,
    least_requests,
    local_only,
    moore_hodgson,
    output_cap,
    ppd,
    prefix_aware,
    priority,
    reasons,
    remote_jsq,
    round_robin,
    threshold,
    weft,
    weighted_score,
)
from weft_core.policies.parameter import Parameter, PolicyError

PolicyName = Literal[
    "weft", "ampd", "remote-jsq", "ppd", "fixed-x", "always-remote", "always-local", "colocated", "threshold",
    "weighted-score", "latency-cost",
]  # fmt: skip
ModeName = Literal["imd", "whole-or-chunked", "ia", "remote-jsq"]
BindingName = Literal["kv-headroom", "prefix-aware", "kv-aware", "least-requests", "round-robin"]
OrderName = Literal["fcfs", "ampd-window", "moore-hodgson", "edf"]

REASONS = reasons.REASONS
MODES: Mapping[str, int] = {name: code for code, name in enumerate(weft.MODES)}
DEFAULT_MODE: ModeName = "imd"


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """A routing rule: ``params`` is its vector of defaults, ``order`` the queue order it goes with."""

    name: str
    code: int
    summary: str
    source: str
    parameters: tuple[Parameter, ...]
    params: tuple[float, ...]
    order: str = "fcfs"


@dataclass(frozen=True, slots=True)
class Rule:
    """A binding or a queue order."""

    name: str
    code: int
    summary: str
    source: str


POLICIES: Mapping[str, RoutingRule] = {
    rule.name: rule
    for rule in (
        RoutingRule(
            "weft", codes.WEFT, "least expected number of missed SLOs",
            weft.SOURCE, weft.PARAMETERS, weft.PARAMS, order="moore-hodgson",
        ),
        RoutingRule(
            "ampd", codes.AMPD, "windowed slack, then least predicted time",
            ampd.SOURCE, ampd.PARAMETERS, ampd.PARAMS, order="ampd-window",
        ),
        RoutingRule(
            "remote-jsq", codes.REMOTE_JSQ, "the prefill worker that should finish first",
            remote_jsq.SOURCE, remote_jsq.PARAMETERS, remote_jsq.PARAMS,
        ),
        RoutingRule(
            "ppd", codes.PPD, "an offline table per context, shape and rate",
            ppd.SOURCE, ppd.PARAMETERS, ppd.PARAMS,
        ),
        RoutingRule(
            "fixed-x", codes.FIXED_X, "a fixed share of later rounds on the decode worker",
            fixed_x.SOURCE, fixed_x.PARAMETERS, fixed_x.PARAMS,
        ),
        RoutingRule(
            "always-remote", codes.ALWAYS_REMOTE, "a random prefill worker",
            always.REMOTE_SOURCE, always.PARAMETERS, always.PARAMS,
        ),
        RoutingRule(
            "always-local", codes.ALWAYS_LOCAL, "every prefill on the decode worker",
            always.LOCAL_SOURCE, always.PARAMETERS, always.PARAMS,
        ),
        RoutingRule(
            "colocated", codes.COLOCATED, "no disaggregation",
            always.COLOCATED_SOURCE, always.PARAMETERS, always.PARAMS,
        ),
        RoutingRule(
            "threshold", codes.THRESHOLD, "long prompts to prefill workers while they have room",
            threshold.SOURCE, threshold.PARAMETERS, threshold.PARAMS,
        ),
        RoutingRule(
            "weighted-score", codes.WEIGHTED_SCORE, "a prefill worker above a sum of weighted votes",
            weighted_score.SOURCE, weighted_score.PARAMETERS, weighted_score.PARAMS,
        ),
        RoutingRule(
            "latency-cost", codes.LATENCY_COST, "the lowest composite cost of all workers",
            latency_cost.SOURCE, latency_cost.PARAMETERS, latency_cost.PARAMS,
        ),
    )
}  # fmt: skip

BINDINGS: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("kv-headroom", codes.KV_HEADROOM, "most free KV memory", kv_headroom.SOURCE),
        Rule("prefix-aware", codes.PREFIX_AWARE, "most of the prompt in the prefix cache", prefix_aware.SOURCE),
        Rule("kv-aware", codes.KV_AWARE, "cache match less cache use", kv_aware.SOURCE),
        Rule("least-requests", codes.LEAST_REQUESTS, "fewest active requests", least_requests.SOURCE),
        Rule("round-robin", codes.ROUND_ROBIN, "in turn", round_robin.SOURCE),
    )
}

ORDERS: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("fcfs", codes.FCFS, "first come, first served", fcfs.SOURCE),
        Rule("ampd-window", codes.AMPD_WINDOW, "best ordering of the head window", ampd_window.SOURCE),
        Rule("moore-hodgson", codes.MOORE_HODGSON, "most tasks on time, with ageing", moore_hodgson.SOURCE),
        Rule("edf", codes.EDF, "earliest deadline first", edf.SOURCE),
    )
}


@dataclass(frozen=True, slots=True)
class QosRule:
    """A rule of quality of service, applied beside the routing rule."""

    name: str
    summary: str
    source: str
    parameters: tuple[Parameter, ...]


QOS: Mapping[str, QosRule] = {
    rule.name: rule
    for rule in (
        QosRule("priority", "the highest waiting class first, with ageing", priority.SOURCE, (moore_hodgson.CAP,)),
        QosRule(
            "early-rejection", "no to ordinary tasks that would miss their TTFT",
            early_rejection.SOURCE, early_rejection.PARAMETERS,
        ),
        QosRule("output-cap", "shorter answers while KV memory is scarce", output_cap.SOURCE, output_cap.PARAMETERS),
        QosRule(
            "local-only", "ordinary tasks off busy prefill workers", local_only.SOURCE, local_only.PARAMETERS
        ),
        QosRule(
            "fair-share", "tenants take turns by their weights in prefill queues",
            fair_share.SOURCE, fair_share.PARAMETERS,
        ),
        QosRule("hedge", "a raced second prefill for the top class", hedge.SOURCE, hedge.PARAMETERS),
    )
}  # fmt: skip

DEFAULT_BINDING: BindingName = "kv-headroom"
DEFAULT_WINDOW = 3
DEFAULT_CAP = int(moore_hodgson.CAP.default)


def parameters(
    policy: str, mode: str = DEFAULT_MODE, overrides: Mapping[str, float] | None = None
) -> tuple[float, ...]:
    """Return a routing rule's parameter vector; ``mode`` counts for ``weft`` alone.

    Raises:
        PolicyError: there is no such policy, mode or parameter, or a value is out of range.
    """
    rule = POLICIES.get(policy)
    if rule is None:
        raise PolicyError(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
    values = list(rule.params)
    if policy == "weft":
        if mode not in MODES:
            raise PolicyError(f"mode: {mode!r} is not one of {', '.join(MODES)}")
        values[weft.MODE] = float(MODES[mode])
    places = {parameter.name: at for at, parameter in enumerate(rule.parameters)}
    for name, value in (overrides or {}).items():
        at = places.get(name)
        if at is None or (policy == "weft" and at == weft.MODE):
            known = ", ".join(n for n in places if n != "mode") or "none"
            raise PolicyError(f"params.{name}: {policy} has no such parameter; it has {known}")
        try:
            values[at] = rule.parameters[at].check(value)
        except PolicyError as error:
            raise PolicyError(f"params.{error}") from None
    return tuple(values)
