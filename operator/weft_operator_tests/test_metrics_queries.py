"""The queries, pinned: WEFT_UPDATE_GOLDEN=1 rewrites the file."""

import os
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from weft_operator.api.prometheus import QUERIED_LABELS, LabelMatcher
from weft_operator.metrics.queries import GAUGES, MAX_LENGTH, PRESENCE, Windows, queries, windows_of
from weft_router.engines.load import SGLANG, TENSORRT_LLM, VLLM, Gauges

GOLDEN = Path(__file__).parent / "golden" / "queries.promql"


def test_the_queries_are_those_of_the_golden_file() -> None:
    text = "\n\n".join(queries("llm", "demo", windows_of(300))) + "\n"
    if os.environ.get("WEFT_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text, (
        "if this is meant, run WEFT_UPDATE_GOLDEN=1 make test-unit and read the difference"
    )


def test_every_query_fits_into_a_url() -> None:
    asked = queries("n" * 63, "s" * 40, windows_of(21600))
    # One figure may be longer than the bound for several, never longer than what a proxy takes.
    assert max(map(len, asked)) < 2 * MAX_LENGTH
    assert len(asked) < 15
    tried = queries("n" * 63, "s" * 40, windows_of(21600), canary_s=86400)
    assert max(map(len, tried)) < 2 * MAX_LENGTH
    assert len(tried) < 17


CLUSTER = (("cluster", 'a"b\\c\n{}'), ("region_1", "Zürich 🚄"))


def test_matchers_are_in_every_selector_and_their_values_are_quoted() -> None:
    """Each selector has the labels of the service and, right behind them, the matchers."""
    asked = "\n".join(queries("llm", "demo", windows_of(300), canary_s=60, matchers=CLUSTER))
    scope = 'namespace="llm",service="demo"'
    quoted = 'cluster="a\\"b\\\\c\\n{}",region_1="Zürich 🚄"'
    assert asked.count(scope) == asked.count("{" + scope + "," + quoted) > 30
    plain = "\n".join(queries("llm", "demo", windows_of(300), canary_s=60))
    assert plain.count("{") == plain.count(scope), "no selector is without the scope"


def test_a_label_that_the_queries_use_cannot_be_a_matcher() -> None:
    asked = "\n".join(queries("llm", "demo", windows_of(300), canary_s=60))
    used = set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", asked))
    for group in re.findall(r"by \(([^)]*)\)", asked):
        used |= set(group.split(", "))
    assert used <= set(QUERIED_LABELS)
    for name in QUERIED_LABELS:
        with pytest.raises(ValidationError, match="names a label that the queries use themselves"):
            LabelMatcher(name=name, value="x")


def test_four_matchers_of_usual_length_fit_into_a_url() -> None:
    names = [(f"{n}{'m' * 15}", "arn:aws:eks:eu-central-1:123456789012:cluster/production") for n in "abcd"]
    usual = queries("n" * 63, "s" * 40, windows_of(21600), canary_s=86400, matchers=names)
    assert max(len(quote(query)) for query in usual) < 8 * 1024


@pytest.mark.parametrize("gauges", [VLLM, SGLANG, TENSORRT_LLM])
def test_how_full_the_kv_cache_is_is_asked_of_every_engine_that_tells_it(gauges: Gauges) -> None:
    (asked,) = [
        part for part in "".join(queries("a", "b", windows_of(300))).split("label_replace(") if "__name__" in part
    ]
    names = asked.partition('__name__=~"')[2].partition('"')[0]
    assert re.fullmatch(names, gauges.usage.decode())


def test_figures_have_names_of_their_own() -> None:
    names = [
        part.split('"')[0] for part in "".join(queries("a", "b", windows_of(300), canary_s=60)).split('"figure", "')[1:]
    ]
    assert len(names) == len(set(names))
    assert set(names) >= PRESENCE | GAUGES


@pytest.mark.parametrize(
    ("window_s", "expected"), [(300, Windows(300, 60)), (20, Windows(20, 15)), (3600, Windows(3600, 720))]
)
def test_the_fast_window_is_a_fifth(window_s: float, expected: Windows) -> None:
    assert windows_of(window_s) == expected
