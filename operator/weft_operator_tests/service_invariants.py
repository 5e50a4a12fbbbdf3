"""What must hold for any service that somebody writes: it is refused by its fields, or becomes objects that last.

The tests and the fuzz target (operator/fuzz) share these.
"""

import asyncio
import copy
import json
from functools import cache
from typing import Any

from weft_core_tests.picker import Picker
from weft_operator.api import DisaggInferenceServiceSpec
from weft_operator.api.objects import Manifest
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.planning.request import planner_request
from weft_operator.render.config_maps import read_record, record_data
from weft_operator_tests.mutations import SEEDS, Mutation, changes_of, spec_schema, stored
from weft_operator_tests.operator_with_plans import solve
from weft_operator_tests.samples import record, rendered, rendering
from weft_operator_tests.valid import REMOVED, changed
from weft_planner.request.error import RequestError

VALUES: tuple[object, ...] = (
    *(None, True, 0, 1, -1, 2**31, 2**63, 10**400, 0.1, 1e300, "", "a", "A_b", "1h", "1e30", "10Gi", "x" * 5000),
    *("☃", "\x00", "\ud800", "http://127.0.0.1", "a/b", [], {}, [None], [[]], {"a": {}}, [{}]),
)


@cache
def _changes(seed: str) -> tuple[Mutation, ...]:
    return tuple(changes_of(seed))


def services_are_refused_or_rendered(data: bytes) -> None:
    """Check one input: a good service with up to four changes that its schema suggests, or that it does not."""
    picker = Picker(data)
    seed = picker.choice(sorted(SEEDS))
    body = SEEDS[seed]()
    for _ in range(1 + picker.number(3)):
        mutation = picker.choice(_changes(seed))
        value: Any = mutation.value if picker.number(2) else picker.choice(VALUES)
        try:
            body = changed(body, mutation.path, value if value is REMOVED else copy.deepcopy(value))
        except (LookupError, TypeError, AttributeError, ValueError):
            continue  # an earlier change took away what this one is of
    service_is_refused_or_rendered(body)


def service_is_refused_or_rendered(body: Manifest) -> None:
    """Check one manifest."""
    messages = service_messages(body)
    if messages:
        assert all(": " in message for message in messages), messages
        return
    kept: Manifest = {**body, "spec": stored(spec_schema(), body["spec"])}
    spec = DisaggInferenceServiceSpec.model_validate(kept["spec"])
    try:
        request = planner_request(spec)
    except RequestError:
        return
    answer = asyncio.run(solve(request, deadline=1.0))
    groups = answer.plan.groups  # type: ignore[union-attr]
    objects = rendered(rendering(kept, *groups))
    assert json.dumps(objects, allow_nan=False)
    again = read_record({"data": record_data(record(kept, *groups))})
    assert again is not None
    assert again.spec == spec
