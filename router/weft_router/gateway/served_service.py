"""What a gateway knows of a service: its names of models, its address, and how long its answers may take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from weft_core.durations import parse_duration
from weft_router.config import ModelConfig
from weft_router.config.gateway import ListedService

TOTAL_S: Final = 3600.0
"""The longest answer of a service that names no other; as in its coordinators."""
PATIENCE_S: Final = 5.0
"""Coordinators wait for the same times; their own end of waiting shall come first."""
MAX_MODEL_LEN: Final = 32768
"""The longest context of a service that names no other, as its definition says."""


@dataclass(frozen=True, slots=True)
class ServedService:
    """One service behind a gateway."""

    namespace: str
    name: str
    created: str
    """When it was created, in a form that sorts by time."""
    url: str
    """Its coordinators."""
    model: ModelConfig
    pooling: bool
    """Whether it answers requests for embeddings and ranks."""
    total_s: float
    """How long an answer may take, the wait for a worker included."""

    @property
    def key(self) -> str:
        """Return what it is called here: NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return every name that clients may ask for."""
        return (self.model.name, *self.model.aliases, *self.model.adapters)


def service_of(manifest: Mapping[str, Any]) -> ServedService:
    """Return the service that a DisaggInferenceService describes.

    Raises:
        ValueError: it is none that can be read, and why; the API server admits no such one.
    """
    try:
        metadata, spec = manifest["metadata"], manifest["spec"]
        name, namespace = str(metadata["name"]), str(metadata["namespace"])
        model, front = spec["model"], spec.get("coordinator") or {}
        served = ModelConfig.model_validate(
            {
                "name": model.get("servedName") or model["name"],
                "aliases": model.get("aliases") or [],
                "adapters": [adapter["name"] for adapter in model.get("adapters") or ()],
                "maxModelLen": model.get("maxModelLen", MAX_MODEL_LEN),
            }
        )
        limits, rest = front.get("limits") or {}, (spec.get("planning") or {}).get("scaleToZero") or {}
        total_s = parse_duration(limits.get("totalTimeout", TOTAL_S)) + parse_duration(rest.get("hold", 0))
        return ServedService(
            namespace=namespace,
            name=name,
            created=str(metadata.get("creationTimestamp") or ""),
            url=f"{'https' if front.get('tls') else 'http'}://{name}.{namespace}.svc",
            model=served,
            pooling=bool(front.get("poolingUrl")),
            total_s=total_s + PATIENCE_S,
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from error


def listed_service(entry: ListedService, place: int) -> ServedService:
    """Return the service at a place of a file's list; an earlier one counts as older."""
    return ServedService(
        namespace=entry.namespace, name=entry.name, created=f"{place:08}", url=entry.url, model=entry.model,
        pooling=entry.pooling, total_s=entry.total + PATIENCE_S,
    )  # fmt: skip
