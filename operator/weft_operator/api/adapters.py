"""LoRA adapters of the model that a service serves."""

from typing import Annotated, ClassVar

from pydantic import StringConstraints

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.references import Pvc

ServedName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$", max_length=128)]
Repository = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$", max_length=128)]


class AdapterSource(ApiModel):
    """Where an adapter comes from."""

    hugging_face: Repository | None = None
    """A repository of the Hugging Face hub, which each engine downloads to load it, with the model's token."""
    pvc: Pvc | None = None
    """A volume. Engines start again for the first adapter, or without the last, of a claim."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.huggingFace) != has(self.pvc)",
            "spec.model.adapters: give exactly one of source.huggingFace and source.pvc",
            lambda s: (s.hugging_face is None) != (s.pvc is None),
        ),
    )


class Adapter(ApiModel):
    """An adapter that every worker has."""

    name: ServedName
    """Name that clients ask for in place of the model's."""
    source: AdapterSource
    """Where it comes from."""
