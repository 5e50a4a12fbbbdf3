"""What memory below the GPUs would bring to a plan: sizes are compared on the plan's own workers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import weft_cli as cli
from weft_core.prediction import Estimate
from weft_planner.request.parts import KVTierSize
from weft_planner.study.kv_tiers import TierRow, least_sufficient
from weft_planner.tables.kv_tiers import named
from weft_planner_tests.plans import PLAN
from weft_planner_tests.test_cli import SERVICE

PAUSES = {"rounds": {"mean": 6}, "gap": {"mean": "200s"}, "increment": {"mean": 2000}, "arrivalRate": 0.3}
"""Sessions that pause for long: eight GPUs cannot hold them all."""


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    body = yaml.safe_load(SERVICE)
    body["spec"]["workload"] |= PAUSES
    body["spec"]["capacity"]["gpus"] = 8
    body["spec"]["capacity"]["pools"][0] |= {"gpuType": "nvidia-h100", "pricePerGpuHour": 3}
    path = tmp_path / "dis.yaml"
    path.write_text(yaml.safe_dump(body))
    return str(path)


def test_sizes_are_compared_on_the_same_workers(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-f", manifest, "--kv-tiers", "cpu:1Gi", "--kv-tiers", "cpu:1Ti,disk:4Ti"]
    assert cli.main([*words, "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["status"] == "ok"
    none, little, much = body["kvTiers"]
    assert none["kvTiers"] == []
    assert [one["name"] for one in much["kvTiers"]] == ["cpu", "disk"]
    assert much["kvTiers"][0]["size"] == 2.0**40
    assert much["recomputed"] < 0.2 * none["recomputed"], "the GPUs cannot hold the sessions that pause"
    assert much["loaded"] > little["loaded"] >= none["loaded"] == 0
    assert much["predicted"]["ttftLater"]["p95"] < none["predicted"]["ttftLater"]["p95"]
    assert much["predicted"]["goodput"]["value"] >= none["predicted"]["goodput"]["value"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "Plan " in shown
    lines = [line.split()[0] for line in shown[shown.index("KV tiers") :].splitlines() if line]
    assert [one for one in lines if one in ("none", "cpu:1Gi", "cpu:1Ti,disk:4Ti")] == [
        "none", "cpu:1Gi", "cpu:1Ti,disk:4Ti",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--kv-tiers", "200Gi"], "200Gi is not NAME:SIZE, by comma, such as cpu:200Gi,disk:2Ti"),
        (["--kv-tiers", "disk:1Ti,cpu:1Gi"], "give each of cpu, disk, remote at most once, in this order"),
        (["--kv-tiers", "tape:1Ti"], "'tape:1Ti' is not NAME:SIZE"),
        (["--kv-tiers", "cpu:1Ti", "--rate-match"], "--rate-match makes no plan"),
        (["--kv-tiers", "cpu:1Ti", "--diff", "live"], "leave one of them out"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    words: list[str], found: str, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "-f", manifest, *words]) == 2
    assert found in " ".join(capsys.readouterr().err.split())


def test_the_least_memory_that_carries_as_much_is_named(rows: list[TierRow]) -> None:
    assert named(least_sufficient(rows).tiers) == "cpu:200Gi"
    half = replace(PLAN.predicted, goodput=Estimate(0.5, 0.5, 0.5))
    worse = [replace(row, predicted=half) if row.tiers else row for row in rows]
    assert named(least_sufficient(worse).tiers) == "none"
    assert (
        named((KVTierSize(name="cpu", size=1.5 * 2**30), KVTierSize(name="disk", size=2**41))) == "cpu:1.5Gi,disk:2Ti"
    )


@pytest.fixture
def rows() -> list[TierRow]:
    """Return rows without runs: 1.0 sessions/s with none, 1.5 with 200 GiB, 1.51 with 1 TiB."""
    sizes = ((), (KVTierSize(name="cpu", size=200 * 2**30),), (KVTierSize(name="cpu", size=2**40),))
    return [
        TierRow(tiers, replace(PLAN.predicted, goodput=Estimate(rate, rate, rate)), 0.0, 0.0)
        for tiers, rate in zip(sizes, (1.0, 1.5, 1.51), strict=True)
    ]
