"""Every way to make a cost profile has words of its own, and pools are named where their costs differ in source."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.cost_sources import LONGEST, cost_sources, source_words
from weft_core.gpus import GPUS
from weft_core.models import MODELS

ANALYTIC = derive_profile(MODELS["Qwen/Qwen2.5-7B-Instruct"], GPUS["nvidia-h20"], degrees=(1,))


def profile(provenance: Mapping[str, str], gpu: str = "nvidia-h20") -> CostProfile:
    return replace(ANALYTIC, gpu=gpu, engine="vllm 0.32.0", provenance=provenance)


@pytest.mark.parametrize(
    ("provenance", "words"),
    [
        ({"source": "engine"}, "are measured on a live engine (vllm 0.32.0)"),
        ({"source": "operators"}, "are composed of operator times measured on this GPU type"),
        (
            {"source": "operators", "tables": "Vidur, 12 operator times"},
            "are composed of operator times from Vidur, 12 operator times",
        ),
        ({"source": "silicon", "tables": "h20, vllm 0.24.0"}, "are fitted to silicon tables (h20, vllm 0.24.0)"),
        (
            {"source": "silicon", "tables": "h20", "fit": "P95 of 9%", "analytic": "degrees 16: no tables"},
            "are fitted to silicon tables (h20); P95 of 9%; degrees 16: no tables",
        ),
        ({"source": "measured"}, "are fitted to given timings, of which the provenance names no engine"),
        ({}, "are those of a cost profile whose provenance names no source"),
        ({"source": "x" * 999}, f"are those of a cost profile whose provenance names '{'x' * LONGEST}' as its source"),
    ],
)
def test_a_source_is_named(provenance: Mapping[str, str], words: str) -> None:
    assert source_words(profile(provenance)) == words


def test_a_derived_profile_names_the_analytic_model() -> None:
    assert cost_sources({"a": ANALYTIC, "b": ANALYTIC}) == [
        "costs of nvidia-h20 follow from the analytic model and its data sheet"
    ]


def test_pools_are_named_where_sources_differ() -> None:
    timed, other = profile({"source": "engine"}), profile({"source": "engine"}, "nvidia-h100")
    assert cost_sources({"a": timed, "b": ANALYTIC, "c": timed, "d": other}) == [
        "costs of nvidia-h20 (pools a, c) are measured on a live engine (vllm 0.32.0)",
        "costs of nvidia-h20 (pool b) follow from the analytic model and its data sheet",
        "costs of nvidia-h100 (pool d) are measured on a live engine (vllm 0.32.0)",
    ]
