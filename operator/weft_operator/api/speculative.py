"""Speculative decoding of a service, and what engines and sources of weights cannot do with it."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from weft_core.plan import Role
from weft_core.speculation import ENGINES, Method
from weft_operator.api.base import ApiModel, Rule


class Speculative(ApiModel):
    """Speculative decoding: a draft proposes tokens, and one step of the model verifies them all."""

    method: Method
    """What proposes tokens: mtp, the model's own next-token-prediction layers; eagle, an EAGLE-3 draft model; ngram,
    what followed the same words earlier in the text."""
    tokens: Annotated[int, Field(ge=1, le=8)] = 2
    """Tokens that are proposed for each step."""
    acceptance: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """Probability that a proposed token is accepted if all before it were, which plans assume; engines report it."""
    model: Annotated[str, StringConstraints(pattern=r"^\S+$", min_length=1, max_length=512)] | None = None
    """eagle: the draft model, by its name on the Hugging Face hub, or by its folder in the engine's container, which is
    below /models where weights come from a volume."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.method != 'eagle' || has(self.model)",
            "spec.engine.speculative.model: eagle needs a draft model that was trained for this one; name it",
            lambda s: s.method != "eagle" or s.model is not None,
        ),
        Rule(
            "self.method == 'eagle' || !has(self.model)",
            "spec.engine.speculative.model: mtp and ngram have no draft model; remove it, or set method to eagle",
            lambda s: s.method == "eagle" or s.model is None,
        ),
    )


def drafts_of(speculative: Speculative | None, role: Role) -> Speculative | None:
    """Return how the engines of a role draft; co-located ones have role decode.

    Engines compare the draft models of both roles when they exchange KV. N-grams need none, and a prefill worker, which
    generates one token, would look them up for nothing.
    """
    if speculative is None or (role == "prefill" and speculative.method == "ngram"):
        return None
    return speculative


_ASKED = "has(self.engine.speculative)"
_OFFLINE = (
    "has(self.model.source) && (has(self.model.source.oci) || has(self.model.source.s3)"
    " || (has(self.model.source.huggingFace) && has(self.model.source.huggingFace.cache)))"
)


def _has_no_stages(spec: Any) -> bool:
    if spec.engine.speculative is None or spec.engine.type == "mock":
        return True
    return all(way.pp == 1 for pool in spec.capacity.pools for way in pool.parallelism or ())


def _n_grams_without_ranks(spec: Any) -> bool:
    asked = spec.engine.speculative
    if asked is None or asked.method != "ngram" or spec.engine.type != "sglang":
        return True
    return all(way.dp == 1 for pool in spec.capacity.pools for way in pool.parallelism or ())


def _draft_is_reached(spec: Any) -> bool:
    asked, source = spec.engine.speculative, spec.model.source
    if asked is None or asked.model is None or asked.model.startswith("/") or source is None:
        return True
    hub = source.hugging_face
    return source.oci is None and source.s3 is None and (hub is None or hub.cache is None)


SPECULATIVE_RULES: tuple[Rule, ...] = (
    Rule(
        f"!{_ASKED} || self.engine.type in {list(ENGINES)}",
        f"spec.engine.speculative: only {', '.join(ENGINES)} can decode speculatively; remove it, or choose one of "
        "them",
        lambda s: s.engine.speculative is None or s.engine.type in ENGINES,
    ),
    Rule(
        f"!{_ASKED} || self.engine.type == 'mock'"
        " || self.capacity.pools.all(p, !has(p.parallelism) || p.parallelism.all(w, w.pp == 1))",
        "spec.capacity.pools.parallelism: engines with pipeline stages cannot decode speculatively; set pp to 1, or "
        "remove spec.engine.speculative",
        _has_no_stages,
    ),
    Rule(
        f"!{_ASKED} || self.engine.type != 'sglang' || self.engine.speculative.method != 'ngram'"
        " || self.capacity.pools.all(p, !has(p.parallelism) || p.parallelism.all(w, w.dp == 1))",
        "spec.engine.speculative.method: sglang takes no n-grams with data-parallel attention; choose mtp or eagle, or "
        "set dp to 1 in spec.capacity.pools.parallelism",
        _n_grams_without_ranks,
    ),
    Rule(
        f"!{_ASKED} || !has(self.engine.speculative.model) || self.engine.speculative.model.startsWith('/')"
        f" || !({_OFFLINE})",
        "spec.engine.speculative.model: engines with cached weights reach no hub; put the draft model into the same "
        "image or volume, and give its folder, such as /models/draft",
        _draft_is_reached,
    ),
)
"""Rules over the whole spec."""
