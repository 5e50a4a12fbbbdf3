"""Put what was observed into the planner's words: the workload that another plan is to be made for."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft_core.plan import content_hash
from weft_core.validity import Validity
from weft_operator.metrics.history import CONFIDENCE
from weft_operator.metrics.observation import ObservedWorkload, Spread

Json = Mapping[str, Any]

POINTS = 64
"""Edges of a histogram at most, as in spec.workload."""
DIGITS = 4
"""Significant digits: looks that differ in less are the same question."""

HASH_DIGITS = 16
LIMITS = ("ttft", "itl")
PREFIX_SHARE = 0.9
"""Of a first prompt, where the prior's shared prefix is longer than the prompts that are seen."""

_WIRE = {
    "rounds": "rounds",
    "first_prompt": "firstPrompt",
    "increment": "increment",
    "decode": "decode",
    "gap_s": "gap",
}


def observed_workload(
    prior: Json, observed: ObservedWorkload, *, rate: float, validity: Validity | None, min_samples: int
) -> dict[str, Any]:
    """Return the workload of a request with the observed figures in place of the prior's.

    ``rate`` are sessions per second to plan for. Figures with fewer than ``min_samples`` samples, the way sessions
    arrive, shared prefixes and classes stay the prior's; figures that classes have of their own are scaled as the mean
    over all classes was (``validity`` holds what it was planned with), for routers count lengths over all classes.
    """
    body: dict[str, Any] = {**prior, "arrivalRate": _round(rate)}
    scaling: dict[str, float] = {}
    for name, wire in _WIRE.items():
        spread: Spread | None = getattr(observed, name)
        if spread is None or spread.count < min_samples or not _usable(name, spread):
            continue
        body[wire] = _figure(name, spread)
        planned: float = getattr(validity, name) if validity is not None else 0.0
        if planned > 0:
            scaling[wire] = spread.mean / planned
    if isinstance(prior.get("classes"), list):
        body["classes"] = [_scaled(item, scaling) for item in prior["classes"]]
    return _with_shorter_prefixes(body)


def with_longer_fast_lengths(load: ObservedWorkload, *, min_samples: int) -> ObservedWorkload:
    """Return a workload with the lengths of the fast window where these are significantly longer.

    After a change the whole window is a mixture of old and new traffic, and a plan for it is right for neither. Shorter
    lengths do not count: of rounds that came after the change, the shortest end first.
    """

    def length(name: str) -> Spread | None:
        whole: Spread | None = getattr(load, name)
        fast = load.fast_lengths.get(name)
        if whole is None or fast is None or fast.count < min_samples:
            return whole
        error = max(whole.sd, fast.sd) / math.sqrt(fast.count)
        return fast if fast.mean - whole.mean > CONFIDENCE * error else whole

    return replace(load, first_prompt=length("first_prompt"), increment=length("increment"), decode=length("decode"))


def stored(workload: Json) -> dict[str, Any]:
    """Return a workload as a record keeps it: of a trace only its hash, for a ConfigMap holds 1 MiB."""
    trace = workload.get("trace")
    return {**workload} if trace is None else {**workload, "trace": content_hash(trace, HASH_DIGITS)}


def taken_up(kept: Json, prior: Json) -> dict[str, Any] | None:
    """Return a record's observed workload as a request has it, None where the prior's trace is another one by now.

    The thresholds of classes are the prior's: they are in the workload of a request, and are the spec's.
    """
    body = {**kept}
    trace = prior.get("trace")
    if (None if trace is None else content_hash(trace, HASH_DIGITS)) != body.pop("trace", None):
        return None
    if trace is not None:
        body["trace"] = trace
    if isinstance(body.get("classes"), list) and isinstance(prior.get("classes"), list):
        body["classes"] = [
            {**{key: value for key, value in was.items() if key not in LIMITS}, **_limits(now)}
            for was, now in zip(body["classes"], prior["classes"], strict=True)
        ]
    return body


def _limits(item: Json) -> dict[str, Any]:
    return {key: item[key] for key in LIMITS if key in item}


def _with_shorter_prefixes(body: dict[str, Any]) -> dict[str, Any]:
    """Return a workload whose shared prefixes are shorter than its first prompts, as a request must have them."""
    first = body.get("firstPrompt")
    parts = [body, *(item for item in body.get("classes") or () if isinstance(item, dict))]
    for part in parts:
        own = part.get("firstPrompt") or first
        prefix = part.get("sharedPrefix", body.get("sharedPrefix"))
        if isinstance(own, Mapping) and isinstance(prefix, int | float) and prefix >= own["mean"]:
            part["sharedPrefix"] = _round(PREFIX_SHARE * own["mean"])
    return body


def _usable(name: str, spread: Spread) -> bool:
    least = {"rounds": 1.0, "gap_s": 0.0}.get(name, 1e-3)
    return math.isfinite(spread.mean) and spread.mean >= least


def _figure(name: str, spread: Spread) -> dict[str, Any]:
    figure: dict[str, Any] = {"mean": _round(spread.mean)}
    edges, weights = spread.edges, spread.weights
    shaped = len(edges) == len(weights) + 1 and 2 <= len(edges) <= POINTS and sum(weights) > 0 and spread.mean > 0
    if shaped and all(math.isfinite(edge) for edge in edges) and (name != "rounds" or spread.mean > 1):
        figure["histogram"] = {"edges": [_round(edge) for edge in edges], "weights": [_round(w) for w in weights]}
    return figure


def _scaled(item: object, scaling: Mapping[str, float]) -> object:
    """Return a class with its own figures scaled; their shapes follow the mean."""
    if not isinstance(item, Mapping):
        return item
    body = dict(item)
    for wire, factor in scaling.items():
        own = body.get(wire)
        if isinstance(own, Mapping) and isinstance(own.get("mean"), int | float):
            least = 1.0 if wire == "rounds" else 0.0
            body[wire] = {**own, "mean": max(least, _round(own["mean"] * factor))}
    return body


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
