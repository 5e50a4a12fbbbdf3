"""The document of a sweep: throughput-latency curves of one live engine, with where they come from.

Times are seconds, lengths tokens. Figures per GPU and per user are written for readers and follow from the others.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from weft_core.parallelism import Parallelism, degree_from_json, degree_to_json, gpus_of

FORMAT: Final = "weft-curves/1"
PER_GPU, PER_USER = "tokensPerSecondPerGpu", "tokensPerSecondPerUser"


def _short(value: float) -> float:
    """Return a figure with the digits that a measurement has."""
    return float(f"{value:.5g}")


Figure = Annotated[float, Field(gt=0, allow_inf_nan=False), PlainSerializer(_short)]
"""Seconds, or a rate per second."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]
SweptDegree = Annotated[
    InstanceOf[Parallelism] | int, BeforeValidator(degree_from_json), PlainSerializer(degree_to_json)
]


class SweepFileError(ValueError):
    """Report a document that is no sweep; each line names the field and the fix."""


class _Part(BaseModel):
    """A part of the document: camelCase in files, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Latency(_Part):
    """The median and the 95th percentile of a latency."""

    p50: Figure
    p95: Figure


class ContextRow(_Part):
    """So many clients that each ask for one token of ever new prompts, the next as soon as the last has come.

    ``prompts_per_second`` is the whole engine's rate.
    """

    prompt_tokens: Count
    concurrency: Count
    requests: Count
    prompts_per_second: Figure
    ttft: Latency


class GenerationRow(_Part):
    """So many sequences that decode together, each holding ``context_tokens``; ``itl`` is the time of a step."""

    context_tokens: Count
    concurrency: Count
    itl: Figure


class ServingRow(_Part):
    """So many clients that each get whole answers, one after the other: the engine prefills and decodes.

    ``itl`` is the mean time between two tokens of an answer, ``tokens_per_second`` the whole engine's output.
    """

    prompt_tokens: Count
    answer_tokens: Count
    concurrency: Count
    requests: Count
    tokens_per_second: Figure
    itl: Figure
    ttft: Latency


class Sweep(_Part):
    """The curves of an engine of one degree; ``kv_capacity_tokens`` is 0 where the engine does not say."""

    format: Literal["weft-curves/1"] = FORMAT
    model: str
    engine: str
    gpu: str = ""
    degree: SweptDegree
    kv_capacity_tokens: Annotated[int, Field(ge=0)] = 0
    measured_at: str
    duration: Annotated[float, Field(ge=0)]
    requests: Annotated[int, Field(ge=0)]
    seed: int
    notes: tuple[str, ...] = ()
    context: tuple[ContextRow, ...] = ()
    generation: tuple[GenerationRow, ...] = ()
    aggregated: tuple[ServingRow, ...] = ()

    @property
    def empty(self) -> bool:
        """Return whether nothing was measured."""
        return not (self.context or self.generation or self.aggregated)


def sweep_to_json(sweep: Sweep) -> dict[str, object]:
    """Return the document, with tokens per GPU and per user in every row."""
    body: dict[str, object] = sweep.model_dump(by_alias=True, mode="json")
    gpus = gpus_of(sweep.degree)
    body["context"] = [
        {**_plain(row), PER_GPU: _short(row.prompts_per_second * row.prompt_tokens / gpus)} for row in sweep.context
    ]
    body["generation"] = [
        {**_plain(row), PER_GPU: _short(row.concurrency / row.itl / gpus), PER_USER: _short(1 / row.itl)}
        for row in sweep.generation
    ]
    body["aggregated"] = [
        {**_plain(row), PER_GPU: _short(row.tokens_per_second / gpus), PER_USER: _short(1 / row.itl)}
        for row in sweep.aggregated
    ]
    return body


def _plain(row: _Part) -> dict[str, object]:
    return row.model_dump(by_alias=True, mode="json")


def sweep_from_json(body: object) -> Sweep:
    """Read a document that is already parsed.

    Raises:
        SweepFileError: a field is unknown, missing or out of range.
    """
    if not isinstance(body, Mapping) or body.get("format") != FORMAT:
        raise SweepFileError(f"format: no {FORMAT}; give a file that weft profile sweep wrote")
    try:
        return Sweep.model_validate({name: _measured(value) for name, value in body.items()})
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_url=False, include_context=False)
        ]
        raise SweepFileError("\n".join(lines)) from error


def _measured(value: object) -> object:
    """Return a list of rows without what follows from the other fields; anything else as it is."""
    if not isinstance(value, list):
        return value
    return [
        {name: one for name, one in row.items() if name not in (PER_GPU, PER_USER)} if isinstance(row, Mapping) else row
        for row in value
    ]


def read_sweep(path: Path) -> Sweep:
    """Read a file, JSON or YAML.

    Raises:
        SweepFileError: it is no sweep.
        OSError: it cannot be read.
    """
    try:
        return sweep_from_json(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SweepFileError(f"format: neither YAML nor JSON ({str(error).splitlines()[0]})") from error


def write_sweep(sweep: Sweep, path: Path) -> None:
    """Write a file at once, JSON or YAML by its ending: a reader never sees half of it.

    Raises:
        OSError: it cannot be written.
    """
    body = sweep_to_json(sweep)
    text = json.dumps(body, indent=1) + "\n" if path.suffix == ".json" else yaml.safe_dump(body, sort_keys=False)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
