"""What real engines have counted themselves: where their prompt tokens came from, and how full their KV caches are."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx

from weft_e2e.engines.pods import reach
from weft_e2e.metrics import Growth, growth
from weft_e2e.service import ROUTER_PORT
from weft_operator.render.engines.container import ENGINE_PORT

_READS = "vllm:nixl_xfer_time_seconds_count"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where an engine's prompt tokens came from."""

    computed: float
    cached: float
    read: float
    """From the other engine, over NIXL."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Where to read what counts, by name; past the API server, which would take seconds."""

    urls: Mapping[str, str]

    def pages(self, names: Collection[str] = ()) -> dict[str, str]:
        """Return the metrics pages of these, or of all."""
        return {name: httpx.get(self.urls[name], timeout=20.0).raise_for_status().text for name in names or self.urls}

    def grown(self, before: Mapping[str, str]) -> Growth:
        """Return what was counted since."""
        return growth(before, self.pages(list(before)))


@contextmanager
def counters(names: Mapping[str, str]) -> Iterator[Counters]:
    """Yield the counters of engines, by role, and of their sidecars, by the names of the pods that ``names`` gives.

    Raises:
        LookupError: no process of such a pod runs on this machine.
    """
    with ExitStack() as ways:
        urls = {role: ways.enter_context(reach(name, ENGINE_PORT)) + "/metrics" for role, name in names.items()}
        urls |= {name: ways.enter_context(reach(name, ROUTER_PORT)) + "/metrics" for name in names.values()}
        yield Counters(urls)


def sources(grown: Growth, engine: str) -> Sources:
    """Return where an engine's prompt tokens came from; proofs of KV paths are among them."""
    found = (
        grown.by_page("vllm:prompt_tokens_by_source_total", source=source)[engine]
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    )
    return Sources(*found)


def reads(grown: Growth) -> dict[str, float]:
    """Return how often each engine has read KV from the other one, by role; proofs of KV paths are among them."""
    counts = {
        page: [value for (sample, _), value in read.samples.items() if sample == _READS]
        for page, read in grown.pages.items()
    }
    return {page: sum(values) for page, values in counts.items() if values}
