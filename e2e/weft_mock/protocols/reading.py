"""Find out which leg of which protocol a request is, and refuse what the protocol does not allow."""

from collections.abc import Callable, Mapping

from weft_mock.config import Protocol
from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.protocols import neuron, sglang, tensorrt_llm
from weft_mock.protocols.foreign import foreign_fields
from weft_mock.protocols.legs import EngineLeg, HandleLeg
from weft_mock.requests import Generation

Reader = Callable[[Engine, Generation, Mapping[str, str]], tuple[Generation, EngineLeg]]
_READERS: Mapping[Protocol, Reader] = {"sglang": sglang.read, "tensorrt-llm": tensorrt_llm.read, "neuron": neuron.read}

_ROUTING_HEADERS = ("x-prefiller-host-port", "x-data-parallel-host-port", "x-gateway-destination-endpoint")


def read_leg(engine: Engine, generation: Generation, headers: Mapping[str, str]) -> tuple[Generation, EngineLeg]:
    """Return the leg, and the generation as that leg limits it.

    Raises:
        ApiError: a field of another protocol is there, or this protocol's own are wrong; the ledger names it.
    """
    config = engine.config
    foreign = [f"foreign_field:{name}" for name in foreign_fields(generation.body, config.protocol)]
    foreign += [f"routing_header:{name}" for name in _ROUTING_HEADERS if name in headers]
    for name in foreign:
        engine.ledger.violations[name] += 1
    if config.protocol == "vllm":
        # Stock vLLM ignores fields it does not know: the ledger alone tells.
        leg = EngineLeg() if generation.kv is None else HandleLeg(generation.kv, bidirectional=config.bidirectional)
        return generation, leg
    if foreign:
        raise ApiError(400, f"{foreign[0].partition(':')[2]}: not for an engine of protocol {config.protocol}")
    reader = _READERS.get(config.protocol)
    return (generation, EngineLeg()) if reader is None else reader(engine, generation, headers)
