"""The page about engines says what their adapters can do."""

import re
from pathlib import Path

from weft_router.engines.adapter import Adapter, AdapterOptions
from weft_router.engines.catalogue import ADAPTERS, adapter_for

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


def row(adapter: Adapter) -> list[str]:
    can = adapter.can
    flags = (can.local, can.bidirectional, can.slices, can.resume, can.first_token, can.responses)
    return [can.order, *("yes" if flag else "no" for flag in flags)]


def test_the_table_is_what_the_adapters_say() -> None:
    first, *_ = PAGE.read_text().partition("## What the operator starts")
    rows = {
        found[1]: [cell.strip() for cell in found[2].split("|")]
        for found in re.finditer(r"^\| `([a-z-]+)` \|(.+)\|$", first, re.MULTILINE)
    }
    assert rows == {kind: row(adapter_for(kind, traits=AdapterOptions(show_first=True))) for kind in ADAPTERS}


def test_the_page_names_the_gauges_that_are_read() -> None:
    page = PAGE.read_text()
    for kind in ADAPTERS:
        gauges = adapter_for(kind).gauges
        names = [
            gauges.running,
            gauges.waiting[0],
            gauges.usage,
            *gauges.capacity,
            *([gauges.info] if gauges.info else []),
        ]
        for name in [gauges.page, *(name.decode() for name in names)]:
            assert f"`{name}`" in page, name
