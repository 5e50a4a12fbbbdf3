"""Names in the product are the field's words, and each stands for one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core/weft_core", "planner/weft_planner", "cli/weft_cli", "router/weft_router", "operator/weft_operator")
RETIRED_CLASSES = frozenset(
    """
    Wakeups Heard Told Fact Decider Stride Trying Undoing PlannerDesk Inquiry Question Sight Sleeper Memories News
    Standing Elector Term Passage Lane Duty Outlet Telling Afterwards Accounts Outlook Member Turn Turns Taking Takes
    Leaving Left Door Caller Siblings Carrier Keeper Errand Way Means Handed Came Gathered EventTap StreamTap FirstTap
    Nursery Stage Scene Playing Contestant Entrant Rivals Judged Spot Around Promise Tau Spare Book Moment Here There
    Within AtFront Taken Torn Kept Going Seen Asked Leg Together Dispatched Pairs Pace Paces OfClass Admitted Sightings
    Affinity Rival Placed
    """.split()  # noqa: SIM905 - words to read
)
RETIRED_MODULES = frozenset(
    """
    telling held_up goal deciding wanted in_force transition measuring sleeping leading live_profile machines
    kept_images managers express duty light_task turn heads wakeups contest guard nursery leg together dispatched pace
    chosen prefilled sightings affinity carried_out
    """.split()  # noqa: SIM905 - words to read
)


def modules(package: str) -> Iterator[Path]:
    return (ROOT / package).rglob("*.py")


def public_classes(package: str) -> Iterator[tuple[str, Path]]:
    for path in modules(package):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path.relative_to(ROOT)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_name_stands_for_one_class(package: str) -> None:
    defined = defaultdict(set)
    for name, path in public_classes(package):
        defined[name].add(str(path))
    assert defined, package
    assert {name: paths for name, paths in defined.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_a_retired_word(package: str) -> None:
    found = {name: str(path) for name, path in public_classes(package) if name in RETIRED_CLASSES}
    parts = {(part, str(path)) for path in modules(package) for part in path.with_suffix("").parts}
    assert found == {}, "use the word of docs/glossary.md"
    assert {path for part, path in parts if part in RETIRED_MODULES} == set()
