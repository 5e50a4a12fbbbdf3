"""What is refused and with which words, where machine code is kept, and that numba is loaded by the first run alone."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from weft_core.cost import CostProfileError
from weft_planner.simulation import (
    Change,
    Layout,
    Options,
    PolicyChoice,
    SimulationError,
    SloClass,
    Worker,
    compiled,
    layout_of,
    simulate,
)
from weft_planner.simulation.inputs import initial_state
from weft_planner_tests.simulated import ONE_CLASS, profile, sample_of

SAMPLE = sample_of([(0.0, [(100.0, 5.0, 0.0)]), (1.0, [(50.0, 2.0, 0.0)])])
PAIR = layout_of("disaggregated", prefill={1: 1}, decode={2: 1})


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Layout((), (Worker(1),)), "prefill"),
        (lambda: Layout((Worker(1),), ()), "decode"),
        (lambda: Layout((Worker(1),), (Worker(1),), "symmetric"), "prefill"),
        (lambda: Layout((Worker(1),), (Worker(1),), "hybrid"), "both roles"),
        (lambda: Layout((), (Worker(1, both=True),), "hybrid"), "both roles"),
        (lambda: Layout((Worker(1),), (Worker(1, both=True),)), "both roles"),
        (lambda: Layout((), (Worker(1), Worker(1, both=True)), "colocated"), "both roles"),
        (lambda: Worker(0), "degree"),
        (lambda: SloClass(0.0, 1.0), "ttft_s"),
        (lambda: Options(chunk_floor=0), "chunk_floor"),
        (lambda: Options(warm_up=0.6, cool_down=0.5), "warm_up"),
        (lambda: Options(links="slow"), "links"),  # type: ignore[arg-type]
        (lambda: Options(changes=(Change(float("nan"), 0, "off"),)), "changes"),
    ],
)
def test_a_setting_out_of_range_names_its_field(build: Callable[[], object], field: str) -> None:
    with pytest.raises(SimulationError, match=field):
        build()


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (PolicyChoice(route="best"), "route"),
        (PolicyChoice(mode="fast"), "mode"),
        (PolicyChoice(order="lifo"), "order"),
        (PolicyChoice(binding="any"), "binding"),
        (PolicyChoice(params={"gamma": 1.0}), "gamma"),
        (PolicyChoice(window=9), "window"),
    ],
)
def test_an_unknown_rule_is_refused(policy: PolicyChoice, word: str) -> None:
    with pytest.raises(SimulationError, match=word):
        simulate(SAMPLE, PAIR, {"gpu": profile()}, policy, ONE_CLASS)


def test_inputs_that_contradict_each_other_are_refused() -> None:
    costs = {"gpu": profile()}
    with pytest.raises(SimulationError, match="pool"):
        simulate(SAMPLE, PAIR, {"other": profile()}, PolicyChoice(), ONE_CLASS)
    with pytest.raises(CostProfileError, match="degree 4"):
        simulate(SAMPLE, layout_of("colocated", decode={4: 1}), costs, PolicyChoice(), ONE_CLASS)
    with pytest.raises(SimulationError, match="worker 7"):
        simulate(SAMPLE, PAIR, costs, PolicyChoice(), ONE_CLASS, options=Options(changes=(Change(0.0, 7, "off"),)))
    with pytest.raises(SimulationError, match="slo"):
        simulate(replace(SAMPLE, session_class=SAMPLE.session_class + 1), PAIR, costs, PolicyChoice(), ONE_CLASS)


@pytest.mark.parametrize(
    ("field", "value"), [("tokens", 0.0), ("gap", -1.0), ("increment", float("nan")), ("arrival", float("inf"))]
)
def test_a_broken_sample_names_the_row(field: str, value: float) -> None:
    figures = getattr(SAMPLE, field).copy()
    figures[1] = value
    with pytest.raises(SimulationError, match=rf"sample\.{field}\[1\]"):
        simulate(replace(SAMPLE, **{field: figures}), PAIR, {"gpu": profile()}, PolicyChoice(), ONE_CLASS)


def test_sessions_out_of_order_are_refused() -> None:
    with pytest.raises(SimulationError, match="sort"):
        simulate(
            replace(SAMPLE, arrival=SAMPLE.arrival[::-1].copy()), PAIR, {"gpu": profile()}, PolicyChoice(), ONE_CLASS
        )


def test_a_layout_fills_nodes_in_order() -> None:
    layout = layout_of("disaggregated", prefill={2: 1, 4: 2}, decode={8: 1}, gpus_per_node=8)
    assert [w.node for w in layout.workers] == [0, 0, 1, 2]
    assert str(layout) == "P4x2 P2x1 D8x1"
    assert layout.gpus == 18


def test_machine_code_is_kept_elsewhere_when_the_cache_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "file" / "cache"))
    assert not str(compiled.cache_folder()).startswith(str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    assert compiled.cache_folder() == tmp_path / "cache" / "numba" / compiled.sources_hash()
    assert not compiled.compiled_before()


def test_every_compiled_source_counts_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(compiled.__file__).parent
    decorated = re.compile(r"simulation\.compiled import .*\b(jitable|entry|callback)\b")
    using = {path for path in folder.rglob("*.py") if decorated.search(path.read_text())}
    others = ("compiled", "ir_compiler", "records", "state_type", "events/__init__")
    using |= {folder / f"{name}.py" for name in others}
    assert using == {path for path in compiled.sources() if path.is_relative_to(folder)}
    before, read = compiled.sources_hash(), Path.read_bytes
    for changed in compiled.sources():
        monkeypatch.setattr(Path, "read_bytes", lambda path, of=changed: read(path) + b"#" * (path == of))
        assert compiled.sources_hash() != before, changed
        monkeypatch.undo()
    assert compiled.sources_hash() == before


def test_numba_is_loaded_by_the_first_run_and_not_before() -> None:
    check = "import sys, weft_planner.simulation; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(("layout", "read"), [(PAIR, 0), (Layout((), (Worker(1), Worker(1)), "symmetric"), 1)])
def test_mode_imd_sees_the_decoding_sessions_where_a_prefill_for_others_delays_some(layout: Layout, read: int) -> None:
    """A remote prefill on a worker with both roles counts each of that worker's sessions as one of the home's does."""
    policy = PolicyChoice(route="weft", mode="imd")
    state = initial_state(SAMPLE, layout, {"gpu": profile()}, policy, ONE_CLASS, options=Options(), seed=0)
    assert state.rules["reads_gaps"][0] == read
