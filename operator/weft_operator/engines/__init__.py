"""One adapter per engine: what the engine container of a worker is told.

Everything engine-specific (flags, environment, ports, start-up time) sits in the adapter's file; the rest of the
operator knows only ``EngineContainer``.
"""

from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.engines import mock, vllm
from weft_operator.engines.container import EngineContainer, EngineRequest

__all__ = ["EngineContainer", "EngineRequest", "engine_container"]

_ADAPTERS = {"mock": mock.container, "vllm": vllm.container}


def engine_container(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> EngineContainer:
    """Return what a worker's engine container runs.

    Raises:
        KeyError: there is no adapter for ``spec.engine.type``; the API refuses such specs.
    """
    return _ADAPTERS[spec.engine.type](spec, request)
