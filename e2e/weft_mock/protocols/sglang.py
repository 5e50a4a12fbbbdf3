"""SGLang's prefill/decode protocol: one body for both legs, sent at the same time, that names a bootstrap room.

The decode engine registers for the room at the bootstrap server of the prefill engine, ``bootstrap_host`` and
``bootstrap_port``; here that is the prefill engine's side channel. The prefill engine computes only then, and answers
when its KV was read; its reply is of no use but for its status.
"""

from collections.abc import Mapping

from weft_core.authority import split_authority
from weft_mock.engine import Engine
from weft_mock.protocols.legs import EngineLeg, HoldingLeg, JoiningLeg
from weft_mock.protocols.refusals import one_answer, one_token, violation
from weft_mock.requests import Generation

_FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
_LARGEST_ROOM = 2**63 - 1


def read(engine: Engine, generation: Generation, _headers: Mapping[str, str]) -> tuple[Generation, EngineLeg]:
    """Return the leg that the bootstrap fields make of a request.

    Raises:
        ApiError: a field is missing, wrong, or not for this engine.
    """
    body, config = generation.body, engine.config
    given = [name for name in _FIELDS if body.get(name) is not None]
    if config.role == "both":
        if given:
            raise violation(engine, "no_role", f"{given[0]}: this engine is no half of a pair", param=given[0])
        return generation, EngineLeg()
    room = body.get("bootstrap_room")
    if room is None or generation.api == "responses":
        # The Responses API does not carry the fields to the scheduler.
        raise violation(engine, "no_room", "Disaggregated request received without bootstrap room id")
    if type(room) is not int or not 0 <= room <= _LARGEST_ROOM:
        raise violation(engine, "wrong_type", "bootstrap_room: a whole number from 0 to 2^63 - 1 is needed")
    host, port = body.get("bootstrap_host"), body.get("bootstrap_port")
    if not isinstance(host, str) or not host:
        raise violation(engine, "wrong_type", "bootstrap_host: a text is needed", param="bootstrap_host")
    if type(port) is not int or not 0 < port < 65536:
        raise violation(engine, "wrong_type", "bootstrap_port: a port is needed", param="bootstrap_port")
    try:
        where = split_authority(f"{host}:{port}")  # as engines before NetworkAddress join them
    except ValueError as error:
        raise violation(engine, "wrong_host", f"bootstrap_host: {error}", param="bootstrap_host") from None
    one_answer(engine, generation)
    key = f"bootstrap_room={room}"
    if config.role == "decode":
        return generation, JoiningLeg(engine, where, key)
    if port != engine.side_channel_port:
        # A real engine waits in vain for a reader that went elsewhere, and so does this one.
        engine.ledger.violations["bootstrap_elsewhere"] += 1
    return one_token(generation), HoldingLeg(engine, key, waits_for_reader=True, waits_for_read=True)
