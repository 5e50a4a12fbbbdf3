"""Bring what is known of a model and a GPU beside what was measured, and turn both into a CostProfile to apply."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from weft_core.analytic import ModelDoesNotFit, derive_profile
from weft_core.config_fields import ModelConfigError
from weft_core.cost import CostProfile
from weft_core.dimensions import ModelDimensions
from weft_core.gpus import Gpu, gpu_named
from weft_core.hf_config import config_of_text, dimensions_of_config
from weft_core.memory import expert_share, kv_layout, worker_weight_bytes
from weft_core.models import MODELS
from weft_core.parallelism import Degree, gpus_of
from weft_core.profile_json import profile_to_json
from weft_planner.profiling.fit import FitPriors, fit_profile
from weft_planner.profiling.kv_format import with_format
from weft_planner.profiling.measurements import MeasurementContext, MeasurementError, Measurements, Memory
from weft_planner.profiling.validation import (
    NOISE,
    Plausibility,
    check,
    plausibility,
    with_slowness,
    without_hidden_transfers,
)


@dataclass(frozen=True, slots=True)
class KnownHardware:
    """A model and a GPU, each None where its figures are not known."""

    model: ModelDimensions | None
    gpu: Gpu | None

    def analytic(self, degrees: Iterable[Degree]) -> CostProfile | None:
        """Return the analytic profile; None where a figure is missing or the model should not fit."""
        wanted = sorted(set(degrees))
        if self.model is None or self.gpu is None or not wanted:
            return None
        try:
            return derive_profile(self.model, self.gpu, degrees=wanted)
        except ModelDoesNotFit:
            return None

    def limits(self, degrees: Iterable[Degree]) -> Plausibility | None:
        """Return what the hardware can do; None where it is not known."""
        if self.model is None or self.gpu is None or self.analytic(degrees) is None:
            return None
        return plausibility(self.model, self.gpu, degrees)


@dataclass(frozen=True, slots=True)
class FitStrictness:
    """How strictly to take measurements: the noise between rows that is allowed, and whether rows may be missing.

    ``link_rate`` is bytes per second of one GPU's link, for transfers that nothing else tells.
    """

    noise: float = NOISE
    allow_missing: bool = False
    link_rate: float = 0.0


def known(*, model: str, gpu: str, config: Path | None = None, kv_format: str = "") -> KnownHardware:
    """Look up a model and a GPU; ``config`` is the model's config.json, for one that is not in the catalogue.

    ``kv_format`` is what the engine keeps its KV in, where it is another than the model's own.

    Raises:
        MeasurementError: the config cannot be used.
        OSError: it cannot be read.
    """
    dimensions = MODELS.get(model)
    if config is not None:
        try:
            dimensions = dimensions_of_config(model or config.name, config_of_text(config.read_text(encoding="utf-8")))
        except ModelConfigError as error:
            raise MeasurementError([f"{config.name}: {line}" for line in str(error).splitlines()]) from error
        except UnicodeDecodeError as error:
            raise MeasurementError(
                [f"{config.name}: no UTF-8 text (byte {error.start}); give a config.json"]
            ) from error
    if dimensions is not None:
        dimensions = with_format(dimensions, kv_format)
    return KnownHardware(dimensions, gpu_named(gpu))


def with_derived_sizes(
    about: MeasurementContext, facts: KnownHardware, degrees: Iterable[Degree]
) -> MeasurementContext:
    """Return ``about`` with the sizes that follow from the model and the GPU, unless measured or given."""
    model, analytic = facts.model, facts.analytic(degrees)
    if model is None:
        return about
    layout = kv_layout(model)
    memory = dict(about.memory)
    for degree in degrees:
        has = memory.get(degree, Memory(0, 0))
        capacity = analytic.degrees[degree].kv_capacity_tokens if analytic and degree in analytic.degrees else 0
        memory[degree] = Memory(
            has.weight_bytes_per_gpu or -(-worker_weight_bytes(model, degree) // gpus_of(degree)),
            has.kv_capacity_tokens or capacity,
        )
    kv_bytes = about.kv_bytes_per_token or layout.per_token + layout.per_window_token
    return replace(about, kv_bytes_per_token=kv_bytes, memory=memory)


def profile_from_measurements(
    measurements: Measurements, facts: KnownHardware, judgement: FitStrictness = FitStrictness()
) -> CostProfile:
    """Check measurements and fit a profile to them.

    Raises:
        MeasurementError: they are not sound, or do not suffice.
    """
    degrees = sorted({row.cell.degree for row in measurements.rows if row.cell.function != "transfer"})
    limits = facts.limits(degrees)
    timed = measurements.about.notes.get("source") == "engine"
    if timed:
        measurements = with_slowness(without_hidden_transfers(measurements, limits), limits)
    check(measurements, noise=judgement.noise, allow_missing=judgement.allow_missing, limits=limits, timed=timed)
    complete = replace(measurements, about=with_derived_sizes(measurements.about, facts, degrees))
    share = expert_share(facts.model) if facts.model else 0.0
    return fit_profile(complete, FitPriors(share, facts.analytic(degrees), judgement.link_rate))


def merge_measurements(runs: Iterable[Measurements]) -> Measurements:
    """Return several runs as one: more degrees, more shapes or more repetitions of the same model, GPU and engine.

    Raises:
        MeasurementError: two runs are of different models, GPUs or engines, or there is none.
    """
    whole: Measurements | None = None
    for run in runs:
        if whole is None:
            whole = run
            continue
        problems = [
            f"{name}: one file is of {mine!r}, another of {theirs!r}; fit them one by one"
            for name in ("model", "gpu", "engine", "kv_bytes_per_token")
            if (mine := getattr(whole.about, name)) and (theirs := getattr(run.about, name)) and mine != theirs
        ]
        if problems:
            raise MeasurementError(problems)
        a, b = whole.about, run.about
        notes = {**b.notes, **a.notes}
        if a.notes.get("source") != b.notes.get("source"):
            notes.pop("source", None)  # what holds for one alone holds for neither: not all of it was timed here
        about = MeasurementContext(
            a.model or b.model,
            a.gpu or b.gpu,
            a.engine or b.engine,
            a.kv_bytes_per_token or b.kv_bytes_per_token,
            {**b.memory, **a.memory},
            notes,
        )
        planned = tuple(dict.fromkeys((*whole.planned, *run.planned)))
        whole = Measurements(about, (*whole.rows, *run.rows), planned)
    if whole is None:
        raise MeasurementError(["no measurements were given"])
    return whole


def manifest(profile: CostProfile, name: str = "") -> dict[str, object]:
    """Return the object to apply: a CostProfile whose name is made of model and GPU unless given."""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{profile.model.rpartition('/')[2]}-{profile.gpu}".lower()).strip("-")[:63]
    return {
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "CostProfile",
        "metadata": {"name": name or slug.strip("-") or "measured"},
        "spec": profile_to_json(profile),
    }
