"""Named workloads of the papers, with their sources; the figures are in ``presets.yaml``."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import cast

import yaml

Body = dict[str, object]


class UnknownPresetError(ValueError):
    """Report a preset that is not known; the message lists those that are."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A workload of a paper: ``body`` in a request's form without a rate, SLOs (TTFT, ITL in seconds) by model."""

    name: str
    source: str
    body: Mapping[str, object]
    slo: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gpus: int | None = None


def preset(name: str) -> Preset:
    """Return a preset.

    Raises:
        UnknownPresetError: there is none of this name.
    """
    found = presets().get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), presets(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownPresetError(f"preset: {name!r} is not known; {hint}Known are {', '.join(presets())}")
    return found


@cache
def presets() -> Mapping[str, Preset]:
    """Return all presets by name."""
    text = resources.files("weft_planner.workload").joinpath("presets.yaml").read_text(encoding="utf-8")
    facts = yaml.safe_load(text)
    listed = [*_ampd(facts["ampd"]), *_ppd(facts["ppd"])]
    return {item.name: item for item in listed}


def _ampd(facts: Mapping[str, object]) -> list[Preset]:
    found = []
    workloads = cast("Mapping[str, Mapping[str, float]]", facts["workloads"])
    slo = cast("Mapping[str, Mapping[str, list[float]]]", facts["slo"])
    source = str(facts["source"])
    for name, row in workloads.items():
        rounds, prompt = row["rounds"], row["prompt"]
        body = {
            "rounds": rounds,
            "firstPrompt": round(row["first"] * prompt, 2),
            "increment": round((1 - row["first"]) * prompt / (rounds - 1), 2),
            "decode": round(row["decode"] / rounds, 2),
            "gap": row["gap"],
            "source": f"{source}, {name}",
            "notes": facts["notes"],
        }
        limits = {model: (rows[name][0] / 1e3, rows[name][1] / 1e3) for model, rows in slo.items()}
        found.append(Preset(f"ampd/{name}", f"{source}, {name}", body, slo=limits, gpus=int(row["gpus"])))
    return found


def _ppd(facts: Mapping[str, object]) -> list[Preset]:
    source = str(facts["source"])
    firsts = cast("Mapping[str, list[float]]", facts["first"])
    seconds = cast("Mapping[str, list[list[float]]]", facts["second"])
    found, every = [], []
    for length, first in firsts.items():
        for kind, rows in seconds.items():
            for k, second in enumerate(rows, start=1):
                name = f"{length}-{kind}-{k}"
                found.append(Preset(f"ppd/{name}", source, _two_turns(name, first, [second], facts)))
            every.append((f"{length}-{kind}", first, rows))
    total = len(found)
    mixed: Body = {
        **_two_turns("mix", *every[0][1:], facts=facts),
        "classes": [
            {"name": name, "share": round(len(rows) / total, 6), **_figures(first, rows)} for name, first, rows in every
        ],
    }
    long = cast("Mapping[str, float]", facts["long-context"])
    context: Body = {
        "rounds": _constant(long["rounds"]),
        "firstPrompt": _constant(long["prompt"]),
        "increment": _constant(long["increment"]),
        "decode": _constant(long["decode"]),
        "gap": _constant(0),
        "source": f"{source}, Figure 1",
        "notes": facts["long-context-notes"],
    }
    return [*found, Preset("ppd/mix", source, mixed), Preset("ppd/long-context", source, context)]


def _two_turns(name: str, first: list[float], rows: list[list[float]], facts: Mapping[str, object]) -> Body:
    return {**_figures(first, rows), "source": f"{facts['source']}, {name}", "notes": facts["notes"]}


def _figures(first: list[float], rows: list[list[float]]) -> Body:
    """Return the figures of conversations whose second turns are spread evenly over ``rows``."""
    return {
        "rounds": _constant(2),
        "firstPrompt": _constant(first[0]),
        "increment": _spread([row[0] for row in rows]),
        "decode": _spread([first[1], *(row[1] for row in rows)], weights=[len(rows), *([1] * len(rows))]),
        "gap": _constant(0),
    }


def _constant(value: float) -> Body:
    return {"mean": value, "cv": 0}


def _spread(values: list[float], weights: list[int] | None = None) -> Body:
    """Return a figure that takes each value as often as its weight says."""
    weighed = sorted(zip(values, weights or [1] * len(values), strict=True))
    if len({value for value, _ in weighed}) == 1:
        return _constant(values[0])
    total = sum(weight for _, weight in weighed)
    at, steps, below = [], [], 0
    for value, weight in weighed:
        at += [below / total, (below + weight) / total]
        steps += [value, value]
        below += weight
    mean = sum(value * weight for value, weight in weighed) / total
    return {"mean": round(mean, 6), "quantiles": {"at": at, "values": steps}}
