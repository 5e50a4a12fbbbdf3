"""Figures of accelerators, each with where it comes from; rates are per GPU and one way, memory is decimal bytes.

The KV rate inside a node is an assumption for every type (a third of NVLink is what one pair of workers is
taken to reach, all of PCIe where there is no NVLink); a measured cost profile replaces it. Prices are not in here:
they are the user's, per pool.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

GB = 10**9
TFLOPS = 1e12

NEURON_CHIPS = ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice")
"""Resources of which one is a chip: newer device plug-ins of Neuron know the first name only."""
CORES_OF_A_CHIP = 4
"""Logical NeuronCores of a Trainium2 with LNC 2, its default: a degree counts them."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator: dense 16-bit FLOP/s, memory bytes and bytes/s, bytes/s of its links, and dense 8-bit FLOP/s.

    ``flops_8bit`` counts 8-bit floating point; 0: the accelerator has none, and computes such weights in 16 bits.
    ``scale_up`` is the link that tensor parallelism uses inside a node, ``kv_in_node`` and ``kv_across_nodes``
    are what KV transfers between two workers get before the link efficiency is applied.
    """

    name: str
    flops: float
    memory_bytes: int
    memory_rate: float
    scale_up: float
    kv_in_node: float
    kv_across_nodes: float
    source: str
    flops_8bit: float = 0.0


def _catalogue(*gpus: Gpu) -> Mapping[str, Gpu]:
    return MappingProxyType({gpu.name: gpu for gpu in gpus})


GPUS: Mapping[str, Gpu] = _catalogue(
    Gpu(
        "nvidia-h20", 148 * TFLOPS, 96 * GB, 4000e9, 450e9, 150e9, 25e9,
        "AMPD section 7.1 (96 GB, NVLink 900 GB/s both ways, 200 GB/s InfiniBand per server of 8); "
        "148 TFLOPS (296 at 8 bit) and 4.0 TB/s as published for the H20",
        flops_8bit=296 * TFLOPS,
    ),
    Gpu(
        "nvidia-h100", 989.4 * TFLOPS, 80 * GB, 3350e9, 450e9, 150e9, 50e9,
        "NVIDIA H100 datasheet, SXM5 (half the sparse figure); one 400 Gb/s adapter per GPU as in DGX H100",
        flops_8bit=1978.9 * TFLOPS,
    ),
    Gpu(
        "nvidia-h200", 989.4 * TFLOPS, 141 * GB, 4800e9, 450e9, 150e9, 50e9,
        "NVIDIA H200 datasheet, SXM (half the sparse figure); one 400 Gb/s adapter per GPU as in DGX H200",
        flops_8bit=1978.9 * TFLOPS,
    ),
    Gpu(
        "nvidia-b200", 2250 * TFLOPS, 180 * GB, 8000e9, 900e9, 300e9, 50e9,
        "NVIDIA DGX B200 datasheet: 1,440 GB and 64 TB/s over 8 GPUs, 72 PFLOPS FP8 with sparsity (a quarter of it "
        "per 8 GPUs dense at 16 bit); one 400 Gb/s adapter per GPU",
        flops_8bit=4500 * TFLOPS,
    ),
    Gpu(
        "nvidia-gb200", 2500 * TFLOPS, 186 * GB, 8000e9, 900e9, 300e9, 50e9,
        "NVIDIA GB200 NVL72 datasheet divided by 72 GPUs (360 PFLOPS sparse at 16 bit, 13.4 TB, 576 TB/s); "
        "one 400 Gb/s adapter per GPU",
        flops_8bit=5000 * TFLOPS,
    ),
    Gpu(
        "nvidia-b300", 2250 * TFLOPS, 270 * GB, 7700e9, 900e9, 300e9, 100e9,
        "NVIDIA HGX B300 figures (Blackwell Ultra datasheet): 270 GB and 7.7 TB/s per GPU, 36 PFLOPS at 16 bit and 72 "
        "FP8 with sparsity over 8 GPUs; one 800 Gb/s adapter per GPU",
        flops_8bit=4500 * TFLOPS,
    ),
    Gpu(
        "nvidia-gb300", 2500 * TFLOPS, 279 * GB, 8000e9, 900e9, 300e9, 100e9,
        "NVIDIA GB300 NVL72 figures (Blackwell Ultra datasheet): 279 GB per GPU, 576 TB/s, 360 PFLOPS at 16 bit and "
        "720 FP8 with sparsity over 72 GPUs; one 800 Gb/s adapter per GPU",
        flops_8bit=5000 * TFLOPS,
    ),
    Gpu(
        "nvidia-a100-80", 312 * TFLOPS, 80 * GB, 2039e9, 300e9, 100e9, 25e9,
        "NVIDIA A100 datasheet, SXM4 80 GB; one 200 Gb/s adapter per GPU as in DGX A100",
    ),
    Gpu(
        "nvidia-a100-40", 312 * TFLOPS, 40 * GB, 1555e9, 300e9, 100e9, 25e9,
        "NVIDIA A100 datasheet, SXM4 40 GB; one 200 Gb/s adapter per GPU as in DGX A100",
    ),
    Gpu(
        "nvidia-l40s", 362 * TFLOPS, 48 * GB, 864e9, 32e9, 32e9, 12.5e9,
        "NVIDIA L40S datasheet (half the sparse figure), PCIe 4.0 x16 and no NVLink; 100 Gb/s per GPU assumed",
        flops_8bit=733 * TFLOPS,
    ),
    Gpu(
        "nvidia-rtx-pro-6000", 500 * TFLOPS, 96 * GB, 1597e9, 64e9, 64e9, 50e9,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet: 96 GB, 1,597 GB/s, 4 PFLOPS FP4 with sparsity (an "
        "eighth of it dense at 16 bit); PCIe 5.0 x16 and no NVLink; 400 Gb/s per GPU assumed",
        flops_8bit=1000 * TFLOPS,
    ),
    Gpu(
        "nvidia-a10g", 70 * TFLOPS, 24 * GB, 600e9, 32e9, 32e9, 1.5e9,
        "NVIDIA A10G figures of Amazon EC2 G5 (dense 16 bit), PCIe 4.0 x16; 100 Gb/s per 8 GPUs as in g5.48xlarge",
    ),
    Gpu(
        "nvidia-l4", 121 * TFLOPS, 24 * GB, 300e9, 32e9, 32e9, 1.5e9,
        "NVIDIA L4 datasheet (half the sparse figure), PCIe 4.0 x16; 100 Gb/s per 8 GPUs assumed",
        flops_8bit=242.5 * TFLOPS,
    ),
    Gpu(
        "amd-mi300x", 1307.4 * TFLOPS, 192 * GB, 5300e9, 448e9, 64e9, 50e9,
        "AMD Instinct MI300X datasheet (dense), 896 GB/s Infinity Fabric both ways, one link of 64 GB/s between "
        "two GPUs; 400 Gb/s per GPU assumed",
        flops_8bit=2614.9 * TFLOPS,
    ),
    Gpu(
        "amd-mi325x", 1307.4 * TFLOPS, 256 * GB, 6000e9, 448e9, 64e9, 50e9,
        "AMD Instinct MI325X datasheet (dense), 896 GB/s Infinity Fabric both ways, one link of 64 GB/s between "
        "two GPUs; 400 Gb/s per GPU assumed",
        flops_8bit=2614.9 * TFLOPS,
    ),
    Gpu(
        "amd-mi355x", 2516.6 * TFLOPS, 288 * GB, 8000e9, 537.6e9, 76.8e9, 50e9,
        "AMD Instinct MI355X datasheet (dense), seven Infinity Fabric links of 153.6 GB/s both ways, one between two "
        "GPUs; 400 Gb/s per GPU assumed",
        flops_8bit=5033.2 * TFLOPS,
    ),
    Gpu(
        "intel-gaudi2", 432 * TFLOPS, 96 * GB, 2450e9, 262.5e9, 37.5e9, 37.5e9,
        "Intel Gaudi 2 white paper: 432 TFLOPS BF16 and 865 FP8, 96 GB, 2.45 TB/s, 24 ports of 100 Gb/s: in HLS-Gaudi2 "
        "21 of them inside the node, three to each of the seven others, and three outside",
        flops_8bit=865 * TFLOPS,
    ),
    Gpu(
        "intel-gaudi3", 1835 * TFLOPS, 128 * GB, 3700e9, 525e9, 75e9, 75e9,
        "Intel Gaudi 3 white paper: 1,835 TFLOPS BF16 and FP8, 128 GB, 3.7 TB/s, 24 ports of 200 Gb/s: in HLB-325 "
        "21 of them inside the node, three to each of the seven others, and three outside",
        flops_8bit=1835 * TFLOPS,
    ),
    Gpu(
        "aws-trainium2", 166.75 * TFLOPS, 24 * 2**30, 725e9, 160e9, 6.25e9, 6.25e9,
        "AWS Neuron documentation, Trainium2 architecture (667 TFLOPS at 16 bit, 1,299 at 8, 96 GiB, 2.9 TB/s, "
        "NeuronLink-v3 1.28 TB/s both ways), divided by the 4 logical NeuronCores of a chip (LNC 2); KV goes through "
        "EFA within a node, too: 3.2 Tb/s per 16 chips as in trn2.48xlarge",
        flops_8bit=324.75 * TFLOPS,
    ),
)  # fmt: skip
"""Accelerators by the name that ``gpuType`` uses; those of MIG slices follow from their GPU's (``gpu_named``).

A Trainium2 counts by its logical NeuronCores: they are what tensor parallelism divides a model over.
"""

MIG_GPUS = frozenset(
    f"nvidia-{name}" for name in ("a100-40", "a100-80", "h20", "h100", "h200", "b200", "b300", "gb200", "gb300")
)
"""GPUs that can be divided into MIG slices."""

_SLICE = re.compile(r"(?P<gpu>.+)-mig-(?P<compute>[12347])g\.(?P<memory>[1-9][0-9]{0,2})gb")
_COMPUTE_PARTS, _MEMORY_PARTS = 7, 8


def gpu_named(name: str) -> Gpu | None:
    """Return an accelerator by the name that ``gpuType`` uses, None for an unknown one.

    ``nvidia-h100-mig-3g.40gb`` is a MIG slice: three sevenths of the GPU's compute, and of its memory, and the rate of
    that, as many eighths as come to 40 GB (NVIDIA's MIG User Guide, table of profiles). Slices reach each other through
    the host's memory alone: what one gets of the network adapter is taken for that, too.
    """
    if name in GPUS:
        return GPUS[name]
    match = _SLICE.fullmatch(name)
    if match is None or match["gpu"] not in MIG_GPUS:
        return None
    whole, memory = GPUS[match["gpu"]], int(match["memory"]) * GB
    eighths = round(_MEMORY_PARTS * memory / whole.memory_bytes)
    if not 1 <= eighths <= _MEMORY_PARTS or memory > whole.memory_bytes:
        return None
    compute, share = int(match["compute"]) / _COMPUTE_PARTS, eighths / _MEMORY_PARTS
    network = whole.kv_across_nodes * share
    return replace(
        whole,
        name=name,
        flops=whole.flops * compute,
        flops_8bit=whole.flops_8bit * compute,
        memory_bytes=memory,
        memory_rate=whole.memory_rate * share,
        scale_up=network,
        kv_in_node=network,
        kv_across_nodes=network,
        source=f"{match['compute']}/7 of the compute and {eighths}/8 of the memory of {whole.name}: {whole.source}",
    )
