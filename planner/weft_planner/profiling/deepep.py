"""Compile a model of silicon tables whose experts exchange tokens by DeepEP's kernels instead of collectives.

By default vLLM and SGLang gather all ranks' tokens and scatter the sums (``allgather_reducescatter``), and that is what
the package ``aiconfigurator-core`` compiles by itself. With DeepEP each token goes to the ranks of its experts alone: a
low-latency kernel in decode steps, a high-throughput one in prefills. The shared experts then lie on every GPU as a
whole and do not run beside the routed ones.
"""

from collections.abc import Mapping
from typing import Any

from weft_core.parallelism import Parallelism

PHASES: Mapping[str, str] = {"context": "deepep_ht", "generation": "deepep_ll"}
"""The package's names of the kernels, by its names of prefill and decode."""
BACKENDS = ("vllm", "sglang")
"""The package's names of the backends whose engines take these kernels when they are told to."""


def compile_with_deepep(
    folder: str, system: str, backend: str, version: str, parts: Parallelism, precision: Mapping[str, str]
) -> Any:
    """Return the package's engine of the model in ``folder``.

    Raises:
        LookupError: the tables have no such kernels for the model over so many GPUs.
        Exception: what else the package raises where its tables lack an operator.
    """
    import aiconfigurator_core
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.engine import EngineHandle, build_engine_spec_json
    from aiconfigurator_core.sdk.models import get_model
    from aiconfigurator_core.sdk.perf_database import get_database, resolve_query_version

    release = resolve_query_version(system, backend, version or "current")
    database = get_database(system, backend, release)
    config = build_model_config(parts.tp, parts.pp, parts.dp, moe_tp_size=1, moe_ep_size=parts.expert_gpus, **precision)
    config.moe_comm_backend = dict(PHASES)
    config.num_gpus_per_node = int(database.system_spec["node"]["num_gpus_per_node"])
    config.system = system
    model = get_model(folder, config, backend)
    if lacking := _lacking(folder, database, config, parts.expert_gpus):
        raise LookupError(f"the tables lack DeepEP's {lacking} of this model over {parts.expert_gpus} GPUs")
    spec = build_engine_spec_json(
        model, model_path=folder, system=system, backend=backend, backend_version=release, kv_block_size=None,
        systems_path=None, nextn=0, database=database,
    )  # fmt: skip
    return EngineHandle(bytes(aiconfigurator_core.engine_spec_bincode_from_json(spec)))


def _lacking(folder: str, database: Any, config: Any, gpus: int) -> str:
    """Return what the tables lack of the exchange between so many GPUs; empty: nothing.

    Where several nodes are not measured, one whole node stands for them, as in the package's own search: the package
    counts such times as estimated.
    """
    from aiconfigurator_core.sdk.models import _get_model_info
    from aiconfigurator_core.sdk.models.blocks.moe import MoEBlockShape

    shape = MoEBlockShape.from_model_info(_get_model_info(folder))
    node = config.num_gpus_per_node
    measured = {(gpus, -(-gpus // node))}
    if gpus > node:
        measured.add((8 if database.backend == "sglang" else node, 1))
    for phase, kernel in PHASES.items():
        covered = database.moe_a2a_coverage(
            shape.hidden_size, shape.topk, shape.num_experts, config.moe_quant_mode, phase
        )
        if not measured & covered.get(kernel, set()):
            return f"{phase} kernel"
    return ""
