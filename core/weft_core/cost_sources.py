"""Name where cost profiles come from, by their provenance: for the notes of plans and for conditions."""

from collections.abc import Mapping

from weft_core.cost import CostProfile

LONGEST = 200
"""Characters of a source that somebody wrote by hand."""


def cost_sources(profiles: Mapping[str, CostProfile]) -> list[str]:
    """Return one sentence for each GPU type and source of profiles by pool; several of them name their pools."""
    pools: dict[tuple[str, str], list[str]] = {}
    for pool, profile in profiles.items():
        pools.setdefault((profile.gpu, source_words(profile)), []).append(pool)
    if len(pools) == 1:
        return [f"costs of {gpu} {words}" for gpu, words in pools]
    return [
        f"costs of {gpu} (pool{'s' if len(names) > 1 else ''} {', '.join(names)}) {words}"
        for (gpu, words), names in pools.items()
    ]


def source_words(profile: CostProfile) -> str:
    """Return where a profile's costs come from, as the rest of a sentence about them."""
    notes = profile.provenance
    source = notes.get("source", "")
    if source == "engine":
        return f"are measured on a live engine ({profile.engine})"
    if source == "operators":
        tables = notes.get("tables")
        return f"are composed of operator times {f'from {tables}' if tables else 'measured on this GPU type'}"
    if source == "silicon":
        rest = "".join(f"; {notes[name]}" for name in ("fit", "analytic") if name in notes)
        return f"are fitted to silicon tables ({notes.get('tables', 'which ones is not said')}){rest}"
    if source == "analytic":
        return "follow from the analytic model and its data sheet"
    if source == "measured":
        return "are fitted to given timings, of which the provenance names no engine"
    said = f"names {source[:LONGEST]!r} as its source" if source else "names no source"
    return f"are those of a cost profile whose provenance {said}"
