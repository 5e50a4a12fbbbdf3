"""The Neuron fork's protocol: both legs at once, and each learns its peer's address from its own X-Request-Id.

``cmpl-<uuid>_<ip:port of the peer>``: the same uuid on both legs. The prefill engine is asked for one token, which it
sends at once; the decode engine sends everything, and that token again first.
"""

import re
from collections.abc import Mapping

from weft_mock.engine import Engine
from weft_mock.protocols.legs import EngineLeg, HoldingLeg, JoiningLeg
from weft_mock.protocols.refusals import one_answer, violation
from weft_mock.requests import Generation

_ID = re.compile(
    r"cmpl-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})_(\[[0-9a-fA-F:.]+\]|[^\s_:]+):(\d{1,5})"
)


def read(engine: Engine, generation: Generation, headers: Mapping[str, str]) -> tuple[Generation, EngineLeg]:
    """Return the leg that the request's id makes of it.

    Raises:
        ApiError: the id is not as it should be, or a prefill asks for more than one token.
    """
    role = engine.config.role
    if role == "both":
        return generation, EngineLeg()
    found = _ID.fullmatch(headers.get("X-Request-Id", ""))
    port = int(found[3]) if found is not None else 0
    if found is None or not 0 < port < 65536:
        raise violation(
            engine, "no_peer", "X-Request-Id: cmpl-<uuid>_<ip:port of the peer> is needed", param="X-Request-Id"
        )
    one_answer(engine, generation)
    key = found[1]
    if role == "decode":
        return generation, JoiningLeg(engine, (found[2].strip("[]"), port), key)
    if generation.limits.max_tokens != 1:
        raise violation(engine, "prefill_not_cut", "max_tokens: a prefill is asked for one token", param="max_tokens")
    return generation, HoldingLeg(engine, key, waits_for_reader=False, waits_for_read=False, reader_port=port)
