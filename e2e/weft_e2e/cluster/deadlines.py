"""How long the local cluster waits for its parts: longer on a machine that is said to be slow."""

import os

from weft_e2e.cluster.errors import Refused

VARIABLE = "WEFT_TIMEOUT_SCALE"


def scaled(seconds: float) -> float:
    """Return the seconds times $WEFT_TIMEOUT_SCALE; raise Refused where that is no number from 1 to 100."""
    text = os.environ.get(VARIABLE, "1")
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 1 <= scale <= 100:
        raise Refused(f"{VARIABLE} {text!r}: choose a number from 1 to 100")
    return seconds * scale
