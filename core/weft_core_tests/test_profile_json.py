import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from weft_core.cost import CostProfile, CostProfileError
from weft_core.profile_json import profile_from_json, profile_to_json
from weft_core_tests.profiles import profiles, simple_profile


@given(profiles())
def test_writing_and_reading_gives_the_same_profile(profile: CostProfile) -> None:
    text = json.dumps(profile_to_json(profile), allow_nan=False)
    assert profile_from_json(json.loads(text)) == profile


def test_an_old_profile_reads_as_one_whose_chunks_cost_what_prefill_costs() -> None:
    body: Any = profile_to_json(simple_profile())
    for row in body["degrees"]:
        for piece in row["decode"]:
            for key in ("perChunkToken", "perChunkPair", "perChunkContext"):
                del piece[key]
    assert profile_from_json(body) == simple_profile()


def _set(path: list[str | int], value: object) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        if isinstance(body, list) and path[-1] == len(body):
            body.append(value)
        else:
            body[path[-1]] = value

    return change


def _drop(path: list[str | int]) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        del body[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            _set(["degrees", 0, "prefill", 0, "alpha"], math.nan),
            r"degrees\[0\]\.prefill\[0\]\.alpha: a figure of 0 or more is needed, got nan",
        ),
        (
            _set(["degrees", 1, "decode", 0, "perSequence"], -1e-3),
            r"degrees\[1\]\.decode\[0\]\.perSequence: a figure .* got -0\.001",
        ),
        (
            _set(["degrees", 0, "prefill", 0, "perToken"], math.inf),
            r"degrees\[0\]\.prefill\[0\]\.perToken: a figure .* got inf",
        ),
        (
            _set(["degrees", 0, "prefill", 0, "perPair"], "fast"),
            r"perPair: a figure of 0 or more is needed, got 'fast'",
        ),
        (
            _set(["degrees", 0, "kvCapacityTokens"], 0.5),
            r"degrees\[0\]\.kvCapacityTokens: a whole number of 1 or more is needed, got 0\.5",
        ),
        (
            _set(["degrees", 0, "weightBytesPerGpu"], True),
            r"degrees\[0\]\.weightBytesPerGpu: a whole number of 1 or more is needed",
        ),
        (_set(["degrees", 1, "degree"], 1), r"degrees\[1\]\.degree: degree 1 appears twice"),
        (_set(["degrees"], []), r"degrees: at least one row is needed"),
        (_set(["degrees", 0, "decode"], []), r"degrees\[0\]\.decode: at least one row is needed"),
        (_set(["transfers"], {}), r"transfers: a list is needed"),
        (_set(["transfers", 0, "link"], "air"), r"transfers\[0\]\.link: 'air' is not a link"),
        (_set(["transfers", 0], 7), r"transfers\[0\]: must be an object"),
        (_set(["model"], ""), r"model: a non-empty text"),
        (_set(["provenance"], [1]), r"provenance: must be an object"),
        (_set(["degrees", 0, "fit"], [0.1]), r"degrees\[0\]\.fit: must be an object"),
        (_set(["degrees", 0, "fit"], {"step": 0.1}), r"degrees\[0\]\.fit\.step: must be an object with median"),
        (
            _set(["transfers", 0, "fit"], {"median": 0.1, "p95": math.nan}),
            r"transfers\[0\]\.fit\.p95: a figure .* got nan",
        ),
        (
            _set(
                ["degrees", 0, "decode", 0], {"alpha": 0, "perSequence": 0, "perContextToken": 0, "expertsSeconds": 1}
            ),
            r"degrees\[0\]\.decode\[0\]\.expertShare: a figure of 0 or more is needed, got None",
        ),
        (
            _drop(["degrees", 0, "decode", 0, "perContextToken"]),
            r"decode\[0\]\.perContextToken: a figure of 0 or more is needed",
        ),
        (
            _drop(["degrees", 0, "decode", 0, "perChunkPair"]),
            r"decode\[0\]\.perChunkPair: a figure of 0 or more is needed, got None",
        ),
        (
            _set(["degrees", 1, "decode", 1], {"alpha": 0, "perSequence": 0, "perContextToken": 0}),
            r"degrees\[1\]\.decode\[1\]: lacks perChunkToken, .* give them in every row of decode, or in none",
        ),
        (
            _set(["degrees", 0, "decode", 0, "fromBatch"], 0),
            r"decode\[0\]\.fromBatch: a whole number of 1 or more is needed, got 0",
        ),
        (
            _set(["degrees", 0, "decode", 0, "fromBatch"], 32),
            r"degrees\[0\]\.decode: every row has fromBatch; one must",
        ),
        (_drop(["transfers", 2, "perToken"]), r"transfers\[2\]\.perToken: a figure of 0 or more is needed, got None"),
        (_drop(["gpu"]), r"gpu: a non-empty text"),
        (_drop(["kvBytesPerToken"]), r"kvBytesPerToken: a whole number of 1 or more is needed"),
    ],
)
def test_a_bad_figure_is_refused_by_its_field(change: Callable[[Any], None], named: str) -> None:
    body = copy.deepcopy(profile_to_json(simple_profile()))
    change(body)
    with pytest.raises(CostProfileError, match=named):
        profile_from_json(body)
