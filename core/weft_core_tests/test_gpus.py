"""The catalogue of accelerators: figures that fit together, MIG slices as parts of their GPUs, and unknown names."""

import pytest

from weft_core.analytic import ModelDoesNotFit, derive_profile
from weft_core.gpus import GB, GPUS, MIG_GPUS, gpu_named
from weft_core.models import MODELS


@pytest.mark.parametrize("name", sorted(GPUS))
def test_every_accelerator_has_figures_that_fit_together(name: str) -> None:
    gpu = GPUS[name]
    assert 30 < gpu.flops / gpu.memory_rate < 600, "FLOPs per byte of memory"
    assert gpu.kv_across_nodes <= gpu.scale_up
    assert gpu.kv_in_node <= gpu.scale_up
    assert gpu_named(name) is gpu


@pytest.mark.parametrize(
    ("model", "ttft", "tpot", "output"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", 0.5757, 0.01983, 1501),
        ("meta-llama/Llama-3.1-405B-Instruct", 2.442, 0.03793, 1788),
    ],
)
def test_published_times_of_trainium2_are_predicted(model: str, ttft: float, tpot: float, output: int) -> None:
    """AWS Neuron tutorials trn2-llama3.3-70b and trn2-llama3.1-405b: medians of LLMPerf, one request at a time.

    Prompts of 10,000 tokens in BF16 on the 64 logical cores of a trn2.48xlarge, without speculative decoding.
    """
    profile = derive_profile(MODELS[model], GPUS["aws-trainium2"], degrees=(64,))
    assert profile.t_pre(history=0, increment=10_000, degree=64) == pytest.approx(ttft, rel=0.25)
    assert profile.t_dec(batch=1, context=10_000 + output / 2, degree=64) == pytest.approx(tpot, rel=0.15)


def test_a_trainium2_counts_by_its_logical_cores() -> None:
    """Heads repeat on cores, not on chips: the 8 of this model have 4 copies over the 32 cores of 8 chips."""
    llama, core = MODELS["meta-llama/Llama-3.3-70B-Instruct"], GPUS["aws-trainium2"]
    profile = derive_profile(llama, core, degrees=(8, 32))
    assert 4 * core.memory_bytes == 96 * 2**30
    free = {n: n * (core.memory_bytes * 0.9 - 2 * GB) - n * profile.degrees[n].weight_bytes_per_gpu for n in (8, 32)}
    each = {n: free[n] / profile.kv_capacity(n) for n in (8, 32)}
    assert each[32] / each[8] == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(
    ("name", "sevenths", "eighths"),
    [
        ("nvidia-h100-mig-1g.10gb", 1, 1),
        ("nvidia-h100-mig-1g.20gb", 1, 2),
        ("nvidia-h100-mig-3g.40gb", 3, 4),
        ("nvidia-h100-mig-7g.80gb", 7, 8),
        ("nvidia-a100-40-mig-3g.20gb", 3, 4),
        ("nvidia-h200-mig-1g.18gb", 1, 1),
        ("nvidia-h200-mig-3g.71gb", 3, 4),
        ("nvidia-b200-mig-2g.45gb", 2, 2),
    ],
)
def test_a_mig_slice_has_its_part_of_the_gpu(name: str, sevenths: int, eighths: int) -> None:
    part, whole = gpu_named(name), GPUS[name.partition("-mig-")[0]]
    assert part is not None
    assert (part.name, part.memory_bytes) == (name, int(name.rpartition(".")[2].removesuffix("gb")) * GB)
    assert part.flops == pytest.approx(whole.flops * sevenths / 7)
    assert part.memory_rate == pytest.approx(whole.memory_rate * eighths / 8)
    assert f"{sevenths}/7 of the compute and {eighths}/8 of the memory of {whole.name}" in part.source


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-h1000",
        "nvidia-l4-mig-1g.3gb",
        "nvidia-h100-mig-5g.40gb",
        "nvidia-h100-mig-7g.160gb",
        "nvidia-h100-mig-1g.1gb",
    ],
)
def test_what_there_is_not_is_unknown(name: str) -> None:
    assert gpu_named(name) is None


def test_a_small_model_fits_a_slice_and_a_large_one_does_not() -> None:
    part = gpu_named("nvidia-h100-mig-3g.40gb")
    assert part is not None
    profile = derive_profile(MODELS["meta-llama/Llama-3.1-8B-Instruct"], part, degrees=(1,))
    assert profile.gpu == "nvidia-h100-mig-3g.40gb"
    whole = derive_profile(MODELS["meta-llama/Llama-3.1-8B-Instruct"], GPUS["nvidia-h100"], degrees=(1,))
    assert profile.kv_capacity(1) < whole.kv_capacity(1) / 2
    with pytest.raises(ModelDoesNotFit):
        derive_profile(MODELS["meta-llama/Llama-3.1-70B-Instruct"], part, degrees=(1,))


def test_all_gpus_that_can_be_divided_are_in_the_catalogue() -> None:
    assert GPUS.keys() >= MIG_GPUS
