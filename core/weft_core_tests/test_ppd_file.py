"""A table as text: whole, and every wrong figure is named."""

import json

import pytest

from weft_core.policies.policy import PolicyError
from weft_core.policies.ppd_file import FIELDS, table_from_json, table_to_json
from weft_core.policies.routing.ppd import PARAMETERS

TABLE = {parameter.name: parameter.default for parameter in PARAMETERS if not parameter.name.startswith("w_")}


def test_a_table_is_read_as_it_was_written() -> None:
    assert table_from_json(table_to_json(TABLE)) == TABLE
    assert list(FIELDS) == list(TABLE)
    assert table_to_json(TABLE).count("\n") == len(TABLE) + 2, "a line for each figure"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("[]", "it must be a JSON object"),
        (json.dumps({**TABLE, "w_tpot": 3}), "w_tpot: a table has no such figure"),
        (json.dumps({**TABLE, "ttft_fall.long.balanced.high": 7}), r"ttft_fall.long.balanced.high: 7 is not between"),
        (json.dumps({**TABLE, "rate_low": "3"}), "rate_low: a number is needed, got '3'"),
        (json.dumps({**TABLE, "rate_low": True}), "rate_low: a number is needed, got True"),
        (json.dumps({**TABLE, "rate_high": float("nan")}), "rate_high: nan is not between"),
        (json.dumps({name: TABLE[name] for name in TABLE if name != "rate_low"}), "rate_low: is missing"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        table_from_json(text)
