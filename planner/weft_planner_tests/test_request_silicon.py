"""Which silicon tables a request takes, and the package with the tables as a source of what is not shipped."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import pytest

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import GPUS
from weft_core.hf_config import dimensions_of_config
from weft_core.models import MODELS
from weft_core.parallelism import Degree
from weft_planner.profiling import silicon as tables
from weft_planner.profiling.silicon import SiliconEngine, SiliconError, plain_config
from weft_planner.request import silicon
from weft_planner.request.costs import profiles_of, source_notes
from weft_planner.request.reading import Request, RequestError, request_of
from weft_planner.silicon.shipped import shipped, with_shipped
from weft_planner_tests.requests import body

QWEN, UNSHIPPED = "Qwen/Qwen3-32B", "test/Llama-of-30-layers"
CONFIG = plain_config(replace(MODELS["meta-llama/Llama-3.1-8B-Instruct"], layers=30))
DENSE = dimensions_of_config(UNSHIPPED, CONFIG)
UNUSED_BY_PLANS = {"pandas", "pyarrow", "scipy"}
"""What the package asks for and the operator's image does not have: no call of a plan needs it."""
FACTOR = 1.25
"""How much slower than the data sheet the stand-in's tables are."""


def request(model: str, gpu: str = "nvidia-h200", degrees: Sequence[Degree] = (2, 4), **asked: str) -> Request:
    pool = {"name": "gpu", "gpuType": gpu, "degrees": list(degrees)}
    return request_of(body(**{**named(model), "capacity.pools": [pool]}, silicon=asked))


def named(model: str) -> dict[str, Any]:
    """Return what a request says of a model: for one that is not known its config.json, too."""
    return {"model.name": model} if model in MODELS else {"model.name": model, "model.config": CONFIG}


def planned(asked: Request) -> tuple[CostProfile, list[str]]:
    found = profiles_of(asked)
    return next(iter(found.values())), source_notes(asked, found)


@dataclass(frozen=True)
class StandIn:
    """Answers as the package's engine: the data sheet's times, and longer by a factor."""

    profile: CostProfile
    degree: Degree

    def predict_prefill_latency(self, _: int, isl: int, prefix: int = 0) -> float:
        return FACTOR * 1e3 * self.profile.t_pre(history=prefix, increment=isl - prefix, degree=self.degree)

    def predict_decode_latency(self, bs: int, isl: int, _: int = 2) -> float:
        pieces = self.profile.degrees[self.degree].decode
        return FACTOR * 1e3 * max(piece.seconds(bs, bs * (isl + 1)) for piece in pieces)

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, _isl: int, _osl: int, prefix: int = 0
    ) -> tuple[float, float, float, float]:
        prefill = self.predict_prefill_latency(1, ctx_tokens + prefix, prefix)
        return 0.0, self.predict_decode_latency(gen_tokens, 256), prefill, 0.0

    def run_static_per_op(self, **_: int) -> tuple[list[tuple[str, float, float, str]], ...]:
        return [("gemm", 1.0, 0.0, "silicon")], [("gemm", 1.0, 0.0, "silicon")]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Degree]:
    """Put a stand-in in the place of the package, which lacks degree 4; return the degrees that were compiled."""
    degrees: list[Degree] = []

    @contextmanager
    def compiler(model: Any, *_: object) -> Iterator[Callable[[Degree], SiliconEngine]]:
        def compile_for(degree: Degree) -> SiliconEngine:
            degrees.append(degree)
            if degree == 4:
                raise SiliconError("GEMM data missing")
            engine: Any = StandIn(derive_profile(model, GPUS["nvidia-h200"], degrees=(degree,)), degree)
            return engine  # type: ignore[no-any-return]

        yield compile_for

    monkeypatch.setattr(silicon, "installed", lambda: True)
    monkeypatch.setattr(silicon, "_fitted_before", {})
    monkeypatch.setattr(tables, "compiler", compiler)
    monkeypatch.setattr(tables, "package_version", lambda: "0.12.0")
    monkeypatch.setattr(tables, "release", lambda _: "0.24.0")
    return degrees


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon, "installed", lambda: False)


@pytest.mark.usefixtures("without_package")
def test_system_and_backend_take_the_place_of_gpu_type_and_engine() -> None:
    found, notes = planned(request(QWEN, "nvidia-h20", system="h100_sxm", backend="sglang"))
    ready = shipped(MODELS[QWEN], "nvidia-h100", "sglang")
    assert ready is not None
    assert found.degrees[4].prefill_fit == ready.degrees[4].prefill_fit
    assert found.provenance["tables"] == ready.provenance["tables"]
    assert (found.gpu, found.engine) == ("nvidia-h20", "sglang")
    derived = derive_profile(MODELS[QWEN], GPUS["nvidia-h20"], degrees=(2, 4))
    assert found.degrees[4].kv_capacity_tokens == derived.degrees[4].kv_capacity_tokens
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"system": "h20"}, r"silicon\.system: .*'a100_sxm'.* or 'rtx_pro_6000_server' \(got 'h20'\)"),
        ({"backend": "trtllm"}, r"silicon\.backend: .*'vllm', 'sglang' or 'tensorrt-llm' \(got 'trtllm'\)"),
        ({"version": "newest"}, r"silicon\.version: "),
    ],
)
def test_what_is_no_system_backend_or_version_is_refused_with_the_known_ones(
    asked: dict[str, str], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        request(QWEN, "nvidia-h200", (2, 4), **asked)


def test_one_system_for_several_gpu_types_is_refused() -> None:
    pools = [{"name": name, "gpuType": f"nvidia-{name}", "degrees": [4]} for name in ("h100", "h200")]
    with pytest.raises(RequestError, match=r"silicon\.system: .*several GPU types \(nvidia-h100, nvidia-h200\)"):
        request_of(body(**{"model.name": QWEN, "capacity.pools": pools}, silicon={"system": "h100_sxm"}))


@pytest.mark.usefixtures("without_package")
def test_the_version_that_is_shipped_may_be_named() -> None:
    assert planned(request(QWEN, version="0.24.0")) == planned(request(QWEN))


@pytest.mark.usefixtures("without_package")
def test_another_version_than_shipped_is_noted_and_the_shipped_one_is_taken() -> None:
    found, (_, package, version) = planned(request(QWEN, version="0.19.0"))
    assert found == planned(request(QWEN))[0]
    assert package.startswith(
        "aiconfigurator-core, which may have tables of h200_sxm with vllm 0.19.0 at degrees 2, 4, is not installed"
    )
    assert version == (
        "silicon.version: no profiles of vllm 0.19.0 are shipped; costs of nvidia-h200 at degrees 2, 4 are those of "
        "0.24.0"
    )


@pytest.mark.usefixtures("without_package")
def test_what_is_not_shipped_names_the_package_that_may_have_it() -> None:
    found, (_, note) = planned(request(UNSHIPPED))
    assert found.provenance["source"] == "analytic"
    assert note == (
        "aiconfigurator-core, which may have tables of h200_sxm with vllm at degrees 2, 4, is not installed: pip "
        "install 'weft[silicon]', or let the operator run the image with the tables (chart value operator.silicon)"
    )


@pytest.mark.usefixtures("without_package")
@pytest.mark.parametrize(("gpu", "engine"), [("amd-mi300x", "vllm"), ("nvidia-h200-mig-3g.71gb", "vllm")])
def test_a_gpu_without_tables_names_no_package(gpu: str, engine: str) -> None:
    found, notes = planned(request("meta-llama/Llama-3.2-1B-Instruct", gpu, (1,)))
    assert found.provenance["source"] == "analytic"
    assert notes[1:] == [f"there are no silicon tables of {gpu} with this model, precision and engine"]


def test_what_is_not_shipped_is_fitted_once_and_noted(compiled: list[Degree]) -> None:
    found, (_, fitted, lacking) = planned(request(UNSHIPPED))
    assert compiled == [2, 4]
    derived = derive_profile(DENSE, GPUS["nvidia-h200"], degrees=(2,))
    one, other = (profile.t_pre(history=0, increment=2048, degree=2) for profile in (found, derived))
    assert one == pytest.approx(FACTOR * other, rel=0.1)
    assert found.degrees[2].prefill_fit is not None
    assert found.degrees[2].kv_capacity_tokens == derived.degrees[2].kv_capacity_tokens
    assert found.degrees[4].prefill_fit is None
    assert fitted == (
        "costs of nvidia-h200 at degree 2 were fitted for this plan (aiconfigurator-core 0.12.0, h200_sxm, vllm "
        "0.24.0): no profiles of these are shipped"
    )
    assert lacking == "aiconfigurator-core has no tables of h200_sxm with vllm at degree 4: GEMM data missing"
    assert planned(request(UNSHIPPED))[0] == found
    assert compiled == [2, 4]


def test_shipped_degrees_are_not_fitted_again(compiled: list[Degree]) -> None:
    assert planned(request(QWEN))[0].provenance["tables"].endswith("vllm 0.24.0")
    assert compiled == []


def test_another_version_is_asked_of_the_package_and_the_shipped_one_has_the_rest(compiled: list[Degree]) -> None:
    found, (_, _, _, version) = planned(request(QWEN, version="0.19.0"))
    derived = derive_profile(MODELS[QWEN], GPUS["nvidia-h200"], degrees=(2, 4))
    of_shipped = with_shipped(derived, MODELS[QWEN], "vllm")
    assert found.degrees[4] == of_shipped.degrees[4]
    assert found.degrees[2] != of_shipped.degrees[2]
    assert version.endswith("costs of nvidia-h200 at degree 4 are those of 0.24.0")


def test_strategies_of_a_pool_without_degrees_are_those_that_the_package_has(compiled: list[Degree]) -> None:
    asked = request_of(
        body(**{**named(UNSHIPPED), "capacity.pools": [{"name": "gpu", "gpuType": "nvidia-h200"}]}, silicon={})
    )
    assert asked.capacity.pools[0].degrees == (1, 2, 4, 8)
    assert compiled == [1, 2, 4, 8]
    profiles_of(asked)
    assert compiled == [1, 2, 4, 8]


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed")
def test_the_package_itself_has_what_is_not_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in UNUSED_BY_PLANS:
        monkeypatch.setitem(sys.modules, name, None)
    found, (_, note) = planned(request(UNSHIPPED))
    assert found.provenance["source"] == "silicon"
    assert note.startswith("costs of nvidia-h200 at degrees 2, 4 were fitted for this plan (aiconfigurator-core ")
    derived = derive_profile(DENSE, GPUS["nvidia-h200"], degrees=(2, 4))
    for degree in (2, 4):
        one, other = (profile.t_pre(history=0, increment=4096, degree=degree) for profile in (found, derived))
        assert one == pytest.approx(other, rel=0.5)
