"""Hold cost profiles to the operator times that NVIDIA measured: ``make bench-silicon`` writes RESULTS.md.

Three predictions of every pass are compared: the profiles that Weft ships, which are fitted to these passes; the
analytic profile with the efficiencies fitted to each GPU type; and the analytic profile with the assumptions that hold
for a GPU without tables, which all GPUs had before.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench.silicon.speculation import section
from bench.silicon.tables import KINDS, Floats, Passes, passes

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.efficiency import DEFAULTS
from weft_core.gpus import GPUS
from weft_planner.profiling.silicon import package_version
from weft_planner.silicon.shipped import with_shipped
from weft_planner.silicon.systems import BACKENDS, SYSTEMS

PAGE = Path(__file__).parent / "RESULTS.md"
PROFILES = ("shipped", "analytic, fitted", "analytic, assumed")

Errors = dict[tuple[str, str, str, str], list[Floats]]
"""By GPU, engine, kind of pass and profile: absolute relative errors."""
Models = dict[tuple[str, str, str], set[str]]
"""By GPU, engine and profile: the names of models."""


def profiles(one: Passes) -> dict[str, CostProfile]:
    """Return what is compared, by the names of ``PROFILES``; nothing is shipped of some degrees."""
    gpu, degrees = GPUS[one.gpu], [one.degree]
    analytic = derive_profile(one.model, gpu, degrees=degrees)
    measured = with_shipped(analytic, one.model, one.engine)
    return {
        **({} if measured is analytic else {"shipped": measured}),
        "analytic, fitted": analytic,
        "analytic, assumed": derive_profile(one.model, gpu, degrees=degrees, efficiency=DEFAULTS),
    }


def collect(gpus: Sequence[str], engines: Sequence[str]) -> tuple[Errors, Models]:
    """Return the errors of all passes that the tables have, and the models that each profile knows."""
    errors: Errors = defaultdict(list)
    models: Models = defaultdict(set)
    for gpu in gpus:
        for engine in engines:
            for one in passes(gpu, engine):
                kinds = one.kinds()
                for name, profile in profiles(one).items():
                    models[gpu, engine, name].add(one.model.name)
                    off = np.abs(one.predicted(profile.degrees[one.degree]) / one.seconds - 1)
                    for kind in KINDS:
                        errors[gpu, engine, kind, name].append(off[kinds == kind])
    return errors, models


def _cell(found: Floats) -> str:
    return f"{np.median(found):.1%}, {np.quantile(found, 0.95):.1%}" if len(found) else "-"


def page(errors: Errors, models: Models) -> str:
    """Return the page: one row for each GPU and engine, and one for all of them."""
    lines = [
        "# Profiles against silicon tables",
        "",
        f"`make bench-silicon` writes this page, from the operator times of aiconfigurator-core {package_version()}.",
        "Each cell has the median and the 95th percentile of the absolute relative error over whole passes at",
        "tensor-parallel degrees 1 to 8: prefills of 16 to 8,192 tokens after up to 16,384 cached ones, decode steps",
        "of 1 to 512 sequences of up to 16,384 tokens, and mixed steps. All times include the engine's assumed",
        "overhead (2 ms a prefill, 1 ms a step), which no table has. *Shipped* profiles are fitted to these passes and",
        "left out where the fit is bad; their errors on passes that were held out are in the profiles. *Analytic,",
        "fitted* has eleven factors for each GPU type (twelve without NVLink), the same for all models and engines.",
        "*Analytic, assumed* has those of a GPU without tables, with 15 ms a prefill and 6 ms a step: a part of its",
        "error is that overhead.",
        "`make silicon-calibration` prints its errors on models that were left out.",
        "",
    ]
    for name in PROFILES:
        lines += [
            f"## {name.capitalize()}",
            "",
            "| GPU | engine | models | prefill | decode | mixed | all |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        whole: list[Floats] = []
        for gpu, engine in [(gpu, engine) for gpu, engine, profile in models if profile == name]:
            count = len(models[gpu, engine, name])
            by_kind = [np.concatenate(errors[gpu, engine, kind, name] or [np.zeros(0)]) for kind in KINDS]
            whole += by_kind
            cells = " | ".join(_cell(found) for found in (*by_kind, np.concatenate(by_kind)))
            lines.append(f"| {gpu} | {engine} | {count} | {cells} |")
        every = np.concatenate(whole)
        lines += [f"| all | | | | | | {_cell(every)} of {len(every):,} passes |", ""]
    return "\n".join((*lines, *section()))


def main() -> None:
    """Compare all, or what is named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="append", choices=tuple(SYSTEMS))
    parser.add_argument("--engine", action="append", choices=tuple(BACKENDS))
    given = parser.parse_args()
    text = page(*collect(given.gpu or tuple(SYSTEMS), given.engine or tuple(BACKENDS)))
    if given.gpu is None and given.engine is None:
        PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
