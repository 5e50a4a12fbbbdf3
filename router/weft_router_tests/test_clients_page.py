"""The page for clients lists every endpoint and every field that the router knows, and no other."""

import re
from pathlib import Path
from unittest.mock import MagicMock

from weft_core.request_fields import ROUTER_FIELD_PREFIXES, ROUTER_FIELDS
from weft_router.anthropic import request as anthropic
from weft_router.openai import bounds, fields, responses
from weft_router.roles.app import DEEP
from weft_router.roles.front import Front
from weft_router.roles.gateway import Gateway

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
NAME = re.compile(r"`([a-z_]+)`")
OF_A_BODY = {*fields.PASSES, *fields.RULES, *bounds.CHAT, *bounds.TEXT, *responses.RULES, *ROUTER_FIELDS}


def section(title: str) -> str:
    """Return a section of the page with those below it."""
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """Return the first cells of the tables' rows, but for their heads."""
    rows = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return [cell for cell in rows if cell.startswith("`")]


def test_every_endpoint_is_on_the_page() -> None:
    named = {path for cell in first_cells(section("Endpoints")) for path in re.findall(r"(/[\w/.{}]+)", cell)}
    for role in (Front, Gateway):
        served = {path.replace(DEEP, "") for path in role.routes(MagicMock())}
        assert {"/v1/models/", "/v1/sessions/"} <= served
        assert sorted({f"{path}{{name}}" if path.endswith("/") else path for path in served} - named) == []


def test_every_field_is_on_the_page() -> None:
    named = set(NAME.findall(section("Fields")))
    assert sorted(OF_A_BODY - named) == []
    assert sorted(prefix for prefix in ROUTER_FIELD_PREFIXES if prefix not in named) == []


def test_no_field_is_in_the_tables_that_the_router_does_not_know() -> None:
    cells = " ".join(first_cells(section("Fields")))
    assert sorted(set(NAME.findall(cells)) - OF_A_BODY) == []


def test_every_field_of_messages_is_on_the_page() -> None:
    named = set(re.findall(r"`([a-z_]+)", " ".join(first_cells(section("Messages")))))
    known = {*anthropic._KNOWN, *anthropic._CONVERTED, "mcp_servers"}
    assert sorted(known - named) == []
