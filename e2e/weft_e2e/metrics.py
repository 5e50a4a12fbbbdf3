"""Read what routers and engines counted, from the text of their metrics pages before and after a replay. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]


class MetricMissing(LookupError):  # noqa: N818 - the words say it: nothing may be reported for it
    """Report that no page declares a metric, so that its figure must not be printed."""


@dataclass(frozen=True, slots=True)
class Page:
    """One metrics page: its samples, and the names it declares even where nothing was counted yet."""

    samples: Samples
    declared: frozenset[str]


def parse(text: str) -> Page:
    """Read a metrics page in Prometheus' text form."""
    samples: dict[tuple[str, Labels], float] = {}
    declared = set()
    for family in text_string_to_metric_families(text):
        declared |= {family.name, f"{family.name}_total"} if family.type == "counter" else {family.name}
        for sample in family.samples:
            samples[sample.name, frozenset(sample.labels.items())] = float(sample.value)
    return Page(samples=samples, declared=frozenset(declared))


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much every counter grew between two readings of many pages."""

    pages: Mapping[str, Page]

    def total(self, name: str, **labels: str) -> float:
        """Return the growth of a counter over all pages, summed over the labels not given."""
        return sum(self.by_page(name, **labels).values())

    def by_page(self, name: str, **labels: str) -> dict[str, float]:
        """Return the growth of a counter for each page that declares it; labels never counted are zero."""
        wanted = frozenset(labels.items())
        found = {
            title: sum(v for (n, have), v in page.samples.items() if n == name and wanted <= have)
            for title, page in self.pages.items()
            if name in page.declared
        }
        if not found:
            pages = ", ".join(sorted(self.pages)) or "none"
            raise MetricMissing(f"no metrics page declares {name}; pages read: {pages}")
        return found

    def mean(self, name: str, **labels: str) -> float:
        """Return the mean of what a histogram observed between the readings, NaN if it observed nothing."""
        self.by_page(name, **labels)  # a histogram that nobody declares is an error
        wanted = frozenset(labels.items())
        total, count = (
            sum(
                v
                for page in self.pages.values()
                for (n, have), v in page.samples.items()
                if n == part and wanted <= have
            )
            for part in (f"{name}_sum", f"{name}_count")
        )
        return total / count if count else math.nan


def growth(before: Mapping[str, str], after: Mapping[str, str]) -> Growth:
    """Compare two sets of pages (page name to text).

    A page that is new, or whose counter fell because its process was restarted, counts from zero. What a page
    counted that was there before and is gone afterwards is unknown and not guessed.
    """
    earlier = {title: parse(text) for title, text in before.items()}
    later = {title: parse(text) for title, text in after.items()}
    return Growth(pages={title: _grown(earlier.get(title), page) for title, page in later.items()})


def _grown(before: Page | None, after: Page) -> Page:
    start = before.samples if before is not None else {}
    grown = {
        key: value - start.get(key, 0.0) if value >= start.get(key, 0.0) else value
        for key, value in after.samples.items()
    }
    return Page(samples=grown, declared=after.declared)


@dataclass(frozen=True, slots=True)
class KvFlow:
    """KV moved each way in bytes, and what became of the history tokens of later rounds.

    They were read over the wire, found in the cache of the worker that needed them, or computed again.
    """

    prefill_to_decode_bytes: float
    decode_to_prefill_bytes: float
    history_read_tokens: float
    history_cached_tokens: float
    history_recomputed_tokens: float


def kv_flow(grown: Growth) -> KvFlow:
    """Return the KV movement that the routers and engines counted; a missing metric is an error, never a zero."""
    return KvFlow(
        prefill_to_decode_bytes=grown.total("weft_router_kv_bytes_total", direction="prefill_to_decode"),
        decode_to_prefill_bytes=grown.total("weft_router_kv_bytes_total", direction="decode_to_prefill"),
        history_read_tokens=grown.total("weft_router_history_tokens_total", kind="read"),
        history_cached_tokens=grown.total("weft_router_history_tokens_total", kind="cached"),
        history_recomputed_tokens=grown.total("weft_router_history_tokens_total", kind="recomputed"),
    )
