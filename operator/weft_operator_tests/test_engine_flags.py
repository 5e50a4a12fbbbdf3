"""Managed flags are refused in every spelling that the engines' parsers take, and no other flag is.

The oracle for vLLM is Python's own argparse with the options of ``vllm serve`` 0.32 (golden/vllm_flags.txt), behind
what ``FlexibleArgumentParser`` does first: underscores become hyphens, and a key inside a JSON value is cut off.
"""

import argparse
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft_operator.api.engine_flags import MANAGED, NAME, RESERVED_ENV, EngineType, is_managed, managed_patterns

GOLDEN = Path(__file__).parent / "golden" / "vllm_flags.txt"
MUST_BE_MANAGED = {
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--decode-context-parallel-size",
    "--prefill-context-parallel-size",
    "--host",
    "--port",
    "--uds",
    "--grpc",
    "--grpc-port",
    "--headless",
    "--api-key",
    "--config",
    "--root-path",
    "--model",
    "--served-model-name",
    "--dtype",
    "--max-model-len",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--kv-transfer-config",
    "--kv-events-config",
    "--kv-offloading-size",
    "--kv-offloading-backend",
    "--kv-cache-dtype",
    "--kv-cache-memory-bytes",
    "--gpu-memory-utilization",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--quantization",
    "--enable-expert-parallel",
    "--speculative-config",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
}
"""Said here once more: an independent list, with the families below."""
FAMILIES = ("--data-parallel-", "--ssl-", "--dp-supervisor-")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(message)


@cache
def options() -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Return the names of each option, and whether it takes a value."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return tuple(
        (tuple(line.removesuffix(" *").split()), not line.endswith(" *")) for line in lines if not line.startswith("#")
    )


@cache
def parser() -> argparse.ArgumentParser:
    made = _Parser(add_help=False)
    for names, valued in options():
        if "--help" in names:
            continue  # it ends the program, whatever else is given
        more = {} if valued else {"action": "store_const", "const": names[0]}
        made.add_argument(*names, dest=names[0], default=None, **more)  # type: ignore[arg-type]
    return made


def managed(names: tuple[str, ...]) -> bool:
    return any(name in MUST_BE_MANAGED or name.startswith(FAMILIES) for name in names)


OPTIONS = {names[0]: names for names, _ in options()}
MANAGED_NAMES = sorted(name for names in OPTIONS.values() if managed(names) for name in names if "--no-" not in name)
FREE_NAMES = sorted(name for names in OPTIONS.values() if not managed(names) for name in names)


def reached(argument: str) -> tuple[str, ...] | None:
    """Return the names of the option that vLLM takes an argument for, None where it takes it for none."""
    name, equals, value = argument.partition("=")
    if name.startswith("--"):
        first, dot, key = name.partition(".")
        name = first.replace("_", "-") + dot + key
    if name.startswith("-"):
        name = name.partition(".")[0]
    words = [f"{name}{equals}{value}"] if equals else [name]
    for given_words in (words, [*words, "1"]):
        try:
            found, _ = parser().parse_known_args(given_words)
        except (ValueError, argparse.ArgumentError):
            continue
        taken = [dest for dest, value in vars(found).items() if value is not None]
        if taken:
            return OPTIONS[taken[0]]
    return None


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Return a managed flag as an author may write it: abbreviated, with underscores, a value, or a key of JSON."""
    name = draw(st.sampled_from(MANAGED_NAMES))
    if name.startswith("--"):
        name = name[: draw(st.integers(3, len(name)))]
        name = "--" + "".join(draw(st.sampled_from("-_")) if letter == "-" else letter for letter in name[2:])
    return name + draw(st.sampled_from(["", "=4", ".kv_role=kv_both", ".a.b+=1", "=", "=--x"]))


@given(spellings())
@settings(max_examples=300)
@example("-tp")
@example("-dp=8")
@example("-t")
@example("--tensor_parallel_size=4")
@example("-q=fp8")
@example("-qfp8")
@example("--tensor-par")
def test_every_spelling_of_a_managed_flag_is_refused(argument: str) -> None:
    names = reached(argument)
    if names is None or managed(names):  # else a beginning of it is the whole name of another flag
        assert is_managed("vllm", argument), argument


def test_every_other_flag_of_vllm_passes() -> None:
    given = [argument for name in FREE_NAMES for argument in (name, f"{name}=4", f"{name}.key=4")]
    assert [argument for argument in given if is_managed("vllm", argument)] == []


@given(st.text("-_=.tpdncrhosmkvaelx128", min_size=1, max_size=12).map(lambda text: f"-{text}"))
@settings(max_examples=600)
@example("-n2")
@example("-r0")
@example("-dpn1")
@example("--_tp")
def test_nothing_that_reaches_a_managed_flag_passes(argument: str) -> None:
    names = reached(argument)
    if names is not None and managed(names):
        assert is_managed("vllm", argument), argument


@pytest.mark.parametrize("argument", ["4", "-1", "-.5", "auto", "/models/x", "kv_producer", "tp", '{"a": 1}', "-"])
def test_values_are_no_flags(argument: str) -> None:
    assert not any(is_managed(engine, argument) for engine in MANAGED)


@pytest.mark.parametrize(
    ("engine", "argument"),
    [
        ("sglang", "--tp"),
        ("sglang", "--tensor_parallel_size=8"),
        ("sglang", "--data-par=2"),
        ("sglang", "--conf"),
        ("sglang", "--disaggregation-m=null"),
        ("sglang", "--admin-api-key=x"),
        ("sglang", "--quantization=fp8"),
        ("sglang", "--max-running=8"),
        ("sglang", "--chunked-prefill-size"),
        ("sglang", "--hicache_size=100"),
        ("sglang", "--enable-hier"),
        ("sglang", "--hicache-storage-backend-extra-config={}"),
        ("sglang", "--hicache-storage=file"),
        ("sglang", "--disaggregation-decode-enable-offload"),
        ("tensorrt-llm", "--tensor_parallel_size"),
        ("tensorrt-llm", "--config=/x.yaml"),
        ("tensorrt-llm", "--disagg_cluster_uri"),
        ("tensorrt-llm", "--gpus-per-node=4"),
        ("tensorrt-llm", "--max_batch_size=64"),
        ("tensorrt-llm", "--max-num-tokens"),
        ("tensorrt-llm", "--served_model_name=x"),
        ("mock", "--listen"),
        ("mock", "--side-channel-port=1"),
        ("mock", "--max-num-seqs=8"),
        ("mock", "--chunk=512"),
        ("mock", "--kv-transfer-config={}"),
    ],
)
def test_other_engines_have_lists_of_their_own(engine: EngineType, argument: str) -> None:
    assert is_managed(engine, argument)


@pytest.mark.parametrize(
    ("engine", "argument"),
    [
        ("sglang", "--enable-metrics"),
        ("sglang", "--hicache-write-policy=write_back"),
        ("sglang", "--hicache-storage-prefetch-policy=timeout"),
        ("sglang", "--hicache-mem-layout=page_first_direct"),
        ("sglang", "--disaggregation-ib-device=mlx5_0"),
        ("sglang", "--quantization-param-path=/x"),
        ("sglang", "--max-prefill-tokens=8192"),
        ("sglang", "--tool-call-parser=qwen25"),
        ("tensorrt-llm", "--max_beam_width=4"),
        ("tensorrt-llm", "--trust_remote_code"),
        ("mock", "--fault={}"),
        ("mock", "--block-size=32"),
    ],
)
def test_other_engines_take_their_other_flags(engine: EngineType, argument: str) -> None:
    assert not is_managed(engine, argument)


@pytest.mark.parametrize(
    "name",
    [
        *("VLLM_API_KEY", "VLLM_HOST_IP", "VLLM_PORT", "VLLM_DP_SIZE", "SGLANG_PORT", "DYN_X", "VLLM_MEDIA_X"),
        *("MOONCAKE_CONFIG_PATH", "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"),
    ],
)
def test_variables_that_say_the_same_are_reserved(name: str) -> None:
    assert re.match(RESERVED_ENV, name)


@pytest.mark.parametrize("name", ["VLLM_PLUGINS", "NCCL_DEBUG", "VLLM_PORTABLE", "UCX_TLS", "PODS"])
def test_variables_of_the_author_s_own_are_free(name: str) -> None:
    assert not re.match(RESERVED_ENV, name)


@pytest.mark.parametrize("engine", sorted(MANAGED))
def test_the_patterns_are_cheap_enough_for_the_api_server(engine: EngineType) -> None:
    """It reckons a quarter of a unit for each character of it, for each ten of the text: 10,000,000 are too many of all

    that there could be (four bytes a character), and 1,000,000 of what there is.
    """
    for pattern in managed_patterns(engine):
        assert "(?" not in pattern, "RE2 knows no lookahead"
        unit = len(pattern) / 4 / 10 * 64
        assert unit * 4 * 1024 < 9_500_000
        assert unit * (1 + 65) + len(NAME) / 4 * 1024 / 10 * 64 < 500_000
