"""A table of policy ``ppd`` as text: a JSON object of the policy's parameters, its weights aside.

``weft ppd learn`` writes it, and ``spec.routing.tableConfigMapRef`` names the ConfigMap that holds it. A table is
whole: cells of two tables were measured under different conditions and do not belong side by side.
"""

import json
from collections.abc import Mapping

from weft_core.policies.policy import PolicyError
from weft_core.policies.routing.ppd import CONTEXT_SHORT, PARAMETERS

TABLE_KEY = "table.json"
"""Key of the ConfigMaps that ``weft ppd learn`` writes."""
FIELDS = {parameter.name: parameter for parameter in PARAMETERS[CONTEXT_SHORT:]}
"""What a table holds: the borders of its classes and two figures for each cell."""


def table_to_json(table: Mapping[str, float]) -> str:
    """Return the text of a table, a line per figure."""
    return json.dumps({name: table[name] for name in FIELDS}, indent=1, allow_nan=False) + "\n"


def table_from_json(text: str) -> dict[str, float]:
    """Return the parameters that a table sets.

    Raises:
        PolicyError: it is no JSON object, or a figure is missing, unknown or out of range; the message names it.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"it is no JSON ({error}); write it with weft ppd learn") from None
    if not isinstance(body, dict):
        raise PolicyError("it must be a JSON object of figures by name; write it with weft ppd learn")
    for name in body:
        if name not in FIELDS:
            raise PolicyError(f"{name}: a table has no such figure; it has {', '.join([*FIELDS][:7])}, …")
    table = {}
    for name, parameter in FIELDS.items():
        value = body.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PolicyError(f"{name}: a number is needed, got {value!r}" if name in body else f"{name}: is missing")
        table[name] = parameter.check(value)
    return table
