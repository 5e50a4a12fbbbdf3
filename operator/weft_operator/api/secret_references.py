"""Which Secrets a service may refer to: those that somebody with rights on Secrets has marked for it.

Whoever may create a DisaggInferenceService need not be allowed to read the Secrets of its namespace. Without a mark a
service could name any of them and have its value sent to a URL or mounted into an image of its author's choice. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from weft_operator.api.objects import Manifest, controller_of, labels_of
from weft_operator.api.service import KIND

USE_LABEL = "weft.dev/use"
TYPE = "weft.dev/credentials"
"""The type of a Secret that is for every use."""

Use = Literal["api-keys", "model", "pods", "prometheus", "tls"]

WELL_KNOWN: Mapping[Use, str] = {"tls": "kubernetes.io/tls"}
"""Types of Secrets that have one use only, and need no label for it."""


@dataclass(frozen=True, slots=True)
class SecretReference:
    """One reference of a service: the field that has it, the Secret's name and what it is for."""

    field: str
    name: str
    use: Use


def usable(secret: Mapping[str, Any], use: Use) -> bool:
    """Return whether a Secret is marked for a use; none of Weft's own ever is."""
    labels, owner = labels_of(secret), controller_of(secret) or {}
    if labels.get("app.kubernetes.io/managed-by") == "weft" or owner.get("kind") == KIND:
        return False
    return secret.get("type") in (TYPE, WELL_KNOWN.get(use, TYPE)) or labels.get(USE_LABEL) == use


def refusal(reference: SecretReference, namespace: str) -> str:
    """Return what to tell of a Secret that is not marked for its use."""
    other = WELL_KNOWN.get(reference.use)
    return (
        f"{reference.field}: Secret {reference.name} is not marked for this use; whoever may change it can allow it: "
        f"kubectl label secret {reference.name} -n {namespace} {USE_LABEL}={reference.use} "
        f"(or make it of type {f'{other} or ' if other else ''}{TYPE})"
    )


def references(spec: Manifest) -> Iterator[SecretReference]:
    """Yield the references of a stored spec whose Secrets go into pods; those of its patches are not among them."""
    source = (spec.get("model") or {}).get("source") or {}
    front = spec.get("coordinator") or {}
    named: tuple[tuple[str, Any, Use], ...] = (
        (
            "spec.model.source.huggingFace.tokenSecretRef",
            (source.get("huggingFace") or {}).get("tokenSecretRef"),
            "model",
        ),
        (
            "spec.model.source.s3.credentialsSecretRef",
            (source.get("s3") or {}).get("credentialsSecretRef"),
            "model",
        ),
        ("spec.coordinator.auth.apiKeySecretRef", (front.get("auth") or {}).get("apiKeySecretRef"), "api-keys"),
        ("spec.coordinator.tls.secretRef", (front.get("tls") or {}).get("secretRef"), "tls"),
    )
    for field, reference, use in named:
        if reference:
            yield SecretReference(field, str(reference.get("name", "")), use)
