"""``--at``: what a service with schedules is planned within at a moment."""

import json
from datetime import datetime
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

import weft_cli as cli
from weft_cli.errors import BadInputError
from weft_planner.cli import hours
from weft_planner.cli.service import Service, ServiceFlags, read_service
from weft_planner_tests.test_cli import SERVICE

SCHEDULES = [
    {"name": "office", "days": ["Mon"], "begin": "08:00", "end": "18:00", "timeZone": "Europe/Berlin",
     "prefill": {"min": 2, "max": 2}, "decode": {"min": 3}},
    {"name": "night", "days": ["Mon"], "begin": "22:00", "end": "06:00", "gpus": 2},
]  # fmt: skip
MONDAY = "2026-11-23"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    document = yaml.safe_load(SERVICE)
    document["spec"]["planning"] = {"decode": {"min": 1}, "layouts": ["disaggregated"], "schedules": SCHEDULES}
    file = tmp_path / "dis.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def read(manifest: Path, at: str | None, gpus: int | None = None) -> Service:
    flags = ServiceFlags(
        file=str(manifest), name=None, profiles=(), capacity=None, trace=None, gpus=gpus, arrival_rate=None, seed=None,
        at=None if at is None else datetime.fromisoformat(at),
    )  # fmt: skip
    return read_service(flags, command="plan")


def test_the_bounds_of_the_hour_stand_in_the_place_of_the_specs(manifest: Path) -> None:
    office = read(manifest, f"{MONDAY}T09:00+01:00")
    assert office.hours is not None
    assert (office.hours.name, office.request.bounds.decode.min, office.request.capacity.gpus) == ("office", 3, 16)
    assert (office.request.bounds.prefill.min, office.request.bounds.prefill.max) == (2, 2)
    night = read(manifest, f"{MONDAY}T22:00Z")
    assert night.hours is not None
    assert (night.hours.name, night.request.bounds.decode.min, night.request.capacity.gpus) == ("night", 1, 2)
    assert read(manifest, f"{MONDAY}T22:00Z", gpus=8).request.capacity.gpus == 8, "what the command line says is last"
    between = read(manifest, f"{MONDAY}T19:00+01:00")
    assert between.hours is not None
    assert between.hours.name == ""
    assert between.request == read(manifest, None).request, "without an hour the spec's own bounds hold"


def test_it_says_which_schedule_is_in_force_until_when_and_with_which_bounds(manifest: Path) -> None:
    told = {at: read(manifest, f"{MONDAY}T{at}").hours for at in ("09:00+01:00", "19:00+01:00", "23:00+01:00")}
    words = [found.words() for found in told.values() if found is not None]
    office, between, night = words
    assert office.startswith("At 2026-11-23T09:00+01:00 schedule office is active until 2026-11-23T18:00+01:00: ")
    assert office.endswith("planned within 2 prefill workers, 3 decode workers or more.")
    assert between.startswith("At 2026-11-23T19:00+01:00 no schedule is active until 2026-11-23T23:00+01:00: ")
    assert between.endswith("planned within the bounds of the spec.")
    assert night.endswith("schedule night is active until 2026-11-24T07:00+01:00: planned within 2 GPUs.")


def test_plan_shows_the_schedule_beside_the_plan_or_the_refusal(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", "-f", str(manifest), "--at", f"{MONDAY}T23:00Z"]
    assert cli.main(asked) == 1
    shown = capsys.readouterr().out
    assert "schedule night is active" in shown
    assert "No plan for demo: TooFewGpus" in shown
    assert cli.main([*asked, "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["schedule"] == {
        "at": "2026-11-23T23:00:00+00:00", "name": "night", "until": "2026-11-24T06:00:00+00:00", "gpus": 2,
    }  # fmt: skip


@pytest.mark.parametrize("at", ["tomorrow", f"{MONDAY}T09:00", "08:00"])
def test_a_moment_without_an_offset_is_refused(manifest: Path, at: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "-f", str(manifest), "--at", at]) == 2
    assert "is no moment with an offset; write 2026-11-22T09:00+01:00" in capsys.readouterr().err


def test_an_unknown_time_zone_is_refused_by_name(manifest: Path) -> None:
    manifest.write_text(manifest.read_text().replace("Europe/Berlin", "Europe/Atlantis"))
    with pytest.raises(BadInputError, match=r"schedules\[office\]\.timeZone: Europe/Atlantis is not in the time zone"):
        read(manifest, f"{MONDAY}T09:00Z")


def test_without_the_part_that_knows_hours_the_specs_own_bounds_hold_and_it_says_so(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = EntryPoint("DisaggInferenceService", "weft_absent.hours:manifest_at", hours.GROUP)
    monkeypatch.setattr(hours, "entry_points", lambda **_: (absent,))
    found = read(manifest, f"{MONDAY}T23:00Z")
    assert (found.hours, found.request.capacity.gpus) == (None, 16)
    assert "schedules were not looked at" in capsys.readouterr().err
