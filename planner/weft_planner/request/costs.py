"""Get the cost profiles that a plan is made with: those given, or ones derived from GPU and model."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft_core.analytic import LARGEST_DEGREE, ModelDoesNotFit, derive_profile, smallest_degree
from weft_core.cost import CostProfile, CostProfileError
from weft_core.cost_sources import cost_sources
from weft_core.dimensions import ModelDimensions
from weft_core.efficiency import Efficiency
from weft_core.fixed_shapes import default_lengths, with_fixed_shapes
from weft_core.gpus import GPUS, Gpu
from weft_core.models import MODELS
from weft_core.parallelism import Degree, gpus_of, gpus_words
from weft_core.profile_json import profile_from_json
from weft_core.shortfall import Remedy
from weft_core.speculation import PROVENANCE as SPECULATION
from weft_core.speculation import SpeculationError, with_speculation
from weft_core.strategies import powers_of_two
from weft_planner.request.capacity import Pool
from weft_planner.request.engines import compatibility_of, draft_fault, draft_notes
from weft_planner.request.hardware import dimensions_of, efficiency_of, gpu_of
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.reading import Request
from weft_planner.request.silicon import silicon_notes, with_silicon


def profile_of(request: Request) -> CostProfile:
    """Return the one profile of a request whose pools all have one GPU type.

    Raises:
        Infeasible: as ``profiles_of``, and when the pools have several GPU types.
    """
    gpu_types = sorted({pool.gpu_type for pool in request.capacity.pools})
    if len(gpu_types) > 1:
        raise Infeasible(
            "MixedGpuTypes",
            f"capacity.pools name {len(gpu_types)} GPU types ({', '.join(gpu_types)}); one plan uses one type: "
            "keep the pools of one of them",
        )
    return next(iter(profiles_of(request).values()))


def profiles_of(request: Request) -> Mapping[str, CostProfile]:
    """Return each pool's profile by the pool's name: the one given for its GPU type, or one derived for it.

    With ``request.silicon`` the figures of silicon tables take the place of derived ones where there are some.
    With ``request.engine.speculative`` steps are those of speculative decoding, unless a given profile says that its
    steps are such already. Those that are derived for an engine of fixed shapes have its padding; given ones have it.

    Derived profiles leave out pools on which the model fits at none of their degrees; KV between two pools takes what
    ``weft_core.transfers.transfer_between`` says. Pools of one GPU type and interconnect share one profile.

    Raises:
        Infeasible: a profile cannot be used or is missing, the model or a GPU is unknown, the model fits nowhere or
            cannot be drafted for.
    """
    given = _speculating(request, _given(request))
    if given:
        return {pool.name: _measured(given, pool) for pool in request.capacity.pools}
    model = dimensions_of(request.model)
    efficiency = efficiency_of(request.analytic)
    degrees: dict[tuple[Gpu, int], list[Degree]] = {}
    for pool in request.capacity.pools:
        degrees.setdefault(_hardware(pool), []).extend(pool.usable_degrees)
    derived: dict[tuple[Gpu, int], CostProfile] = {}
    refusals = []
    for (gpu, node_gpus), allowed in degrees.items():
        try:
            profile = derive_profile(
                model,
                gpu,
                degrees=allowed,
                efficiency=efficiency_of(request.analytic, gpu.name),
                sequence_tokens=session_tokens(request),
                node_gpus=node_gpus,
            )
            places = request.engine.decode.max_num_seqs
            if compatibility_of(request.engine).places and places is not None:
                profile = _in_places(request, profile, places)
            if request.silicon is not None:
                profile = with_silicon(request, profile, model, node_gpus)
            if compatibility_of(request.engine).fixed_shapes:
                lengths = request.engine.context_buckets or default_lengths(request.model.max_model_len)
                profile = with_fixed_shapes(profile, lengths=lengths, batch=places)
            derived[gpu, node_gpus] = with_drafts(request, profile, model)
        except ModelDoesNotFit as error:
            refusals.append(f"{error}{_other_gpus(model, allowed, efficiency)}")
        except Infeasible as error:
            if error.reason != "ModelDoesNotFit":
                raise
            refusals.append(error.message)
    if not derived:
        remedies = tuple(_larger_degrees(request, model, efficiency))
        raise Infeasible("ModelDoesNotFit", "; ".join(refusals), remedies=remedies)
    return {pool.name: derived[kind] for pool in request.capacity.pools if (kind := _hardware(pool)) in derived}


def speculation_notes(request: Request, profiles: Mapping[str, CostProfile]) -> list[str]:
    """Return what a plan's costs assume about speculative decoding, and what is not sure about it."""
    if request.engine.speculative is None:
        return []
    said = {profile.gpu: profile.provenance.get(SPECULATION, "") for profile in profiles.values()}
    notes = [f"costs of {gpu} are those of speculative decoding: {words}" for gpu, words in said.items()]
    if request.slo.itl_statistic != "mean":
        notes.append(
            f"speculative decoding yields several tokens at once, so a round's {request.slo.itl_statistic} ITL is "
            f"longer than predicted, by up to {request.engine.speculative.tokens + 1} times; an SLO on the mean "
            "(slo.itlStatistic) is predicted right"
        )
    return notes + draft_notes(request.engine, known_model(request))


def _speculating(request: Request, given: Mapping[str, CostProfile]) -> Mapping[str, CostProfile]:
    """Return given profiles, as ``profiles_of`` says, by GPU type."""
    if request.engine.speculative is None or not given:
        return given
    model = known_model(request)
    try:
        return {gpu: with_drafts(request, profile, model) for gpu, profile in given.items()}
    except ModelDoesNotFit as error:
        raise Infeasible("ModelDoesNotFit", str(error)) from error


def with_drafts(request: Request, profile: CostProfile, model: ModelDimensions | None) -> CostProfile:
    """Return a profile with the steps of a request's speculative decoding, if it asks for it and they are plain ones.

    Raises:
        Infeasible: the model, of these dimensions if they are known, cannot be drafted for.
        ModelDoesNotFit: no degree has room for KV beside the draft.
    """
    asked = request.engine.speculative
    if asked is None or SPECULATION in profile.provenance:
        return profile
    fault = draft_fault(request.engine, model) if model is not None else ""
    try:
        if fault:
            raise SpeculationError(fault)
        return with_speculation(profile, asked.speculation, model, sequence_tokens=session_tokens(request))
    except SpeculationError as error:
        raise Infeasible("SpeculationUnsupported", f"engine.speculative.{error}") from error


def known_model(request: Request) -> ModelDimensions | None:
    """Return the dimensions of a model that has a profile, None where they are not known."""
    if request.model.config is None and request.model.name not in MODELS:
        return None
    return dimensions_of(request.model)


def source_notes(request: Request, profiles: Mapping[str, CostProfile]) -> list[str]:
    """Return where a plan's costs come from, for each source, and whether measured ones are compared with assumed."""
    notes = cost_sources(profiles)
    by_gpu = {profile.gpu: profile for profile in profiles.values()}
    assumed = sorted(gpu for gpu, profile in by_gpu.items() if profile.provenance.get("source") == "analytic")
    if request.silicon is not None and request.profile is None and not request.profiles:
        found = {gpu: silicon_notes(request, profile) for gpu, profile in by_gpu.items()}
        notes += [note for of_gpu in found.values() for note in of_gpu]
        unknown = [gpu for gpu in assumed if not found[gpu]]
        if unknown:
            notes.append(f"there are no silicon tables of {', '.join(unknown)} with this model, precision and engine")
    if 0 < len(assumed) < len(by_gpu):
        notes.append(
            f"measured costs are compared with assumed ones of {', '.join(assumed)}, which may be too slow by some "
            "milliseconds a step; give cost profiles (spec.profile.refs) for a fair choice"
        )
    return notes


def _hardware(pool: Pool) -> tuple[Gpu, int]:
    """Return what a pool's costs follow from: its GPU, and how many of them a fast link joins; 0: all of a worker."""
    return gpu_of(pool), pool.scale_up_gpus


def _larger_degrees(request: Request, model: ModelDimensions, efficiency: Efficiency) -> Iterator[Remedy]:
    """Yield for each pool the least power of two, added to its degrees, at which two workers and the context fit.

    Within a node first; only then over several.
    """
    for place, pool in enumerate(request.capacity.pools):
        if pool.parallelism:
            continue  # its degrees do not count
        named = pool.degrees or powers_of_two(pool.gpus_per_node)
        degree = 2 * max(named)
        while degree <= min(LARGEST_DEGREE, request.capacity.gpus // 2):
            with contextlib.suppress(ModelDoesNotFit):
                profile = derive_profile(
                    model, gpu_of(pool), degrees=[degree], efficiency=efficiency, node_gpus=pool.scale_up_gpus
                )
                context = with_drafts(request, profile, model).longest_context(degree)
                if pool.takes(degree) and context >= request.model.max_model_len:
                    yield Remedy(f"capacity.pools.{place}.degrees", [*named, degree])
                    break
            degree *= 2


def _in_places(request: Request, profile: CostProfile, places: int) -> CostProfile:
    """Return a derived profile whose KV capacity is that of so many mean sessions, each in a place for the longest.

    Raises:
        Infeasible: at no degree is there memory for the places.
    """
    longest = request.model.max_model_len
    kept = {n: costs for n, costs in profile.degrees.items() if costs.kv_capacity_tokens >= places * longest}
    if not kept:
        degree, costs = max(profile.degrees.items(), key=lambda item: item[1].kv_capacity_tokens)
        raise Infeasible(
            "ModelDoesNotFit",
            f"engine.decode.maxNumSeqs: {places} sequences of up to {longest} tokens take the memory of "
            f"{places * longest} tokens, and a worker on {gpus_words(degree)} of {profile.gpu} has room for "
            f"{costs.kv_capacity_tokens}; "
            "lower maxNumSeqs or model.maxModelLen, or choose larger capacity.pools.degrees",
        )
    tokens = max(longest, int(places * session_tokens(request)))
    return replace(
        profile,
        degrees={n: replace(costs, kv_capacity_tokens=tokens) for n, costs in kept.items()},
        transfers={way: cost for way, cost in profile.transfers.items() if kept.keys() >= {*way[:2]}},
    )


def session_tokens(request: Request) -> float:
    """Return the mean length of a session at its end, within the context limit: windows save more the longer."""
    tokens = math.fsum(item.share * item.total_tokens for item in request.workload.mix)
    return min(tokens, float(request.model.max_model_len))


def _given(request: Request) -> Mapping[str, CostProfile]:
    """Return the request's own profiles by GPU type."""
    bodies = [("profile", request.profile)] if request.profile is not None else []
    bodies += [(f"profiles.{index}", body) for index, body in enumerate(request.profiles)]
    found: dict[str, CostProfile] = {}
    for where, body in bodies:
        try:
            profile = profile_from_json(body or {})
        except CostProfileError as error:
            raise Infeasible("ProfileInvalid", f"{where}.{error}") from error
        if profile.model != request.model.name:
            raise Infeasible(
                "ProfileInvalid",
                f"{where}.model: it is of {profile.model}, the service runs {request.model.name}; "
                "use a profile of that",
            )
        if profile.gpu in found:
            raise Infeasible("ProfileInvalid", f"{where}.gpu: a second profile of {profile.gpu} is given; keep one")
        found[profile.gpu] = profile
    return found


def _measured(given: Mapping[str, CostProfile], pool: Pool) -> CostProfile:
    profile = given.get(pool.gpu_type)
    if profile is None:
        raise Infeasible(
            "ProfileInvalid",
            f"profile.gpu: it was measured on {', '.join(sorted(given))}, pool {pool.name} has {pool.gpu_type}; "
            f"use a profile of {pool.gpu_type}",
        )
    return profile


def _other_gpus(model: ModelDimensions, degrees: list[Degree], efficiency: Efficiency) -> str:
    """Name up to three GPU types, least memory first, on which a degree of the pools would do."""
    by_memory = sorted(GPUS.values(), key=lambda gpu: (gpu.memory_bytes, gpu.name))
    fitting = [(gpu.name, smallest_degree(model, gpu, efficiency=efficiency)) for gpu in by_memory]
    named = [f"{name} at degree {n}" for name, n in fitting if n is not None and n <= max(map(gpus_of, degrees))][:3]
    return f"; with these degrees it fits {', '.join(named)}" if named else ""
