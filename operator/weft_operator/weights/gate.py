"""Hold back workers until their weights are cached: reads the inputs of ``decide``."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from weft_operator.api.model import Model
from weft_operator.api.model_cache import cached_model
from weft_operator.api.objects import COMPONENT_LABEL, WEIGHTS_COMPONENT, ServiceKey, labels_of, name_of
from weft_operator.errors import StalledError
from weft_operator.kube.observe import Observed
from weft_operator.kube.stored_service import parse_service
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.objects import mounts_of
from weft_operator.weights.decide import ModelState, model_state
from weft_operator.weights.job_status import worker_pods
from weft_operator.weights.progress import Progress

ReadProgress = Callable[[ServiceKey, Sequence[str]], Awaitable[Mapping[str, Progress]]]


class ImageVolumeCheck(Protocol):
    """Checks whether pods may have image volumes."""

    async def image_volumes_refusal(self, namespace: str, image: str) -> str:
        """Return why they may not, "" where they may."""


async def no_progress(_key: ServiceKey, _pods: Sequence[str]) -> Mapping[str, Progress]:
    """Read no progress, for operators without Redis."""
    return {}


async def read_model_state(
    rendering: Rendering,
    observed: Observed,
    *,
    token: bytes,
    images: ImageVolumeCheck,
    progress: ReadProgress,
    now: datetime,
) -> ModelState:
    """Return the state of the weights of a rendered service.

    Raises:
        ApiError: the API server refused or did not answer.
    """
    model, source = cached_model(rendering.spec.model), rendering.spec.model.source
    pods = [pod for pod in observed.pods if labels_of(pod).get(COMPONENT_LABEL) == WEIGHTS_COMPONENT]
    if model is not None and model.cache.node is not None:
        pods = worker_pods(observed, model.key)
    refusal = ""
    if source is not None and source.oci is not None:
        refusal = await images.image_volumes_refusal(rendering.key.namespace, source.oci.reference)
    return model_state(
        rendering,
        observed,
        mounts_of(rendering, token=token),
        token=token,
        newest=_newest(observed),
        progress={} if model is None else await progress(rendering.key, [name_of(pod) for pod in pods]),
        image_volumes=refusal,
        now=now,
    )


def _newest(observed: Observed) -> Model | None:
    """Return the model of the newest spec, None where that breaks a rule."""
    try:
        return parse_service(observed.service).spec.model
    except StalledError:
        return None


def must_wait(record: PlanRecord | None, before: PlanRecord | None, state: ModelState) -> bool:
    """Return whether the workers of a plan must wait for weights; running ones with the same weights need not."""
    if record is None or state.ready:
        return False
    return before is None or _place(before.spec.model) != _place(record.spec.model)


def _place(model: Model) -> tuple[str, ...]:
    """Return what identifies the weights and their source."""
    cached, source = cached_model(model), model.source
    if cached is not None:
        claim = cached.cache.claim
        return ("cache", cached.key, "" if claim is None else claim.existing_claim or "own")
    return ("image", source.oci.reference) if source is not None and source.oci is not None else ("engine",)
