"""The adapter of a service's engine, from its configuration."""

from weft_router.config import RouterConfig
from weft_router.engines.adapter import Adapter, Traits
from weft_router.engines.catalogue import adapter_for


def adapter_of(config: RouterConfig) -> Adapter:
    """Return the adapter of the engine that a service runs."""
    engine, routing = config.engine, config.routing
    return adapter_for(
        engine.type,
        traits=Traits(
            bidirectional=engine.bidirectional,
            bootstrap_port=engine.bootstrap_port,
            resume="sampled" if routing.resume == "auto" else routing.resume,
            show_first=routing.first_token_from_prefill == "auto",  # noqa: S105  (no password)
            slice_block=routing.slices.block,
        ),
    )
