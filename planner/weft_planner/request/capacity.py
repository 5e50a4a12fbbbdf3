"""The GPUs of a planning request: pools, their nodes and links, and how workers may be split over them."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from weft_core.layouts import Role
from weft_core.parallelism import Degree, degree_of, gpus_of, parallelism_of
from weft_core.spans import fits_nodes
from weft_core.strategies import near_strategies, powers_of_two
from weft_planner.request.parts import Count, NotNegative, Part, Positive, absent


class Interconnect(Part):
    """KV bandwidth of one GPU in bytes per second, in place of the catalogue's: inside a node and across nodes."""

    in_node: Positive | None = None
    across_nodes: Positive | None = None


class Split(Part):
    """A parallelism strategy over a worker's GPUs (``weft_core.parallelism``)."""

    tp: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    pp: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    dp: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    ep: bool = False

    @property
    def degree(self) -> Degree:
        """Return it as a degree."""
        return degree_of(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep)

    @property
    def in_manifest(self) -> str:
        """Return it as YAML, without the parts that are 1: {tp: 4, pp: 2}."""
        parts = [f"{name}: {value}" for name, value in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)) if value > 1]
        return f"{{{', '.join([*parts, *['ep: true'] * self.ep] or ['tp: 1'])}}}"


def split_of(degree: Degree) -> Split:
    """Return a degree as an entry of ``parallelism``."""
    parts = parallelism_of(degree)
    return Split(tp=parts.tp, pp=parts.pp, dp=parts.dp, ep=parts.ep)


class Pool(Part):
    """GPUs of one type in nodes of one shape; ``gpus`` defaults to the whole capacity.

    ``degrees`` are numbers of GPUs that share layers by tensors; strategies in ``parallelism`` take their place. Pools
    that have neither get one of them in a request (``request.enumeration``); a pool alone then has powers of two.
    ``nodes`` are the free GPUs of each real node, where they were seen. ``price_per_gpu_hour`` is in any currency.
    ``gpus_per_rack`` are the GPUs that NVLink joins over several nodes: a worker on several nodes lies in one rack, and
    ``racks`` are the wholly free nodes of each real rack, where they were seen. None: NVLink ends at the node.
    """

    name: Annotated[str, Field(min_length=1)]
    gpu_type: Annotated[str, Field(min_length=1)]
    gpus_per_node: Annotated[int, Field(ge=1, le=1024, strict=True)] = 8
    degrees: Annotated[tuple[Count, ...], Field(min_length=1, max_length=16)] | None = None
    parallelism: Annotated[tuple[Split, ...], Field(max_length=16)] = ()
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=2)] = ("decode", "prefill")
    gpus: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    gpus_per_rack: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = Field(default=None, exclude_if=absent)
    racks: Annotated[tuple[Annotated[int, Field(ge=0, le=4096, strict=True)], ...], Field(max_length=4096)] | None = (
        Field(default=None, exclude_if=absent)
    )
    nodes: Annotated[tuple[Annotated[int, Field(ge=0, le=1024, strict=True)], ...], Field(max_length=4096)] | None = (
        None
    )
    price_per_gpu_hour: NotNegative | None = None
    interconnect: Interconnect | None = None

    @field_validator("degrees", "roles", "parallelism")
    @classmethod
    def _in_one_order(cls, value: tuple[object, ...] | None) -> tuple[object, ...] | None:
        """Sort them: their order means nothing, so it must not change a plan's inputs hash."""
        return None if value is None else tuple(sorted(set(value), key=lambda item: (len(str(item)), str(item))))

    @field_validator("nodes", "racks")
    @classmethod
    def _largest_first(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Sort them for the same reason; a node without a free GPU, or a rack without a free node, holds no worker."""
        return None if value is None else tuple(sorted((size for size in value if size), reverse=True))

    @model_validator(mode="after")
    def _a_degree_fits_a_node(self) -> Self:
        if self.gpus_per_rack is not None and self.gpus_per_rack % self.gpus_per_node:
            raise ValueError(
                f"gpusPerRack: {self.gpus_per_rack} is no multiple of gpusPerNode ({self.gpus_per_node}); a rack has "
                "whole nodes"
            )
        if not self.usable_degrees:
            near = [n for n in near_strategies(self.all_degrees[0], node_gpus=self.gpus_per_node) if self.takes(n)]
            rack = "" if self.gpus_per_rack is None else f" within a rack of {self.gpus_per_rack}"
            raise ValueError(
                f"{'parallelism' if self.parallelism else 'degrees'}: none of "
                f"[{', '.join(map(str, self.all_degrees))}] fits a node of {self.gpus_per_node} GPUs "
                f"or is a multiple of them{rack}; add one that is{f', such as {near[0]}' if near else ''}"
            )
        return self

    @property
    def all_degrees(self) -> tuple[Degree, ...]:
        """Return every parallelism strategy that is asked for, without repetition."""
        named = tuple(dict.fromkeys(one.degree for one in self.parallelism))
        return named or self.degrees or powers_of_two(self.gpus_per_node)

    @property
    def usable_degrees(self) -> tuple[Degree, ...]:
        """Return the degrees that lie within a node or fill several of one rack."""
        return tuple(degree for degree in self.all_degrees if self.takes(degree))

    @property
    def spans(self) -> bool:
        """Return whether a worker of one of the degrees lies on several nodes."""
        return any(gpus_of(degree) > self.gpus_per_node for degree in self.usable_degrees)

    @property
    def scale_up_gpus(self) -> int:
        """Return how many GPUs share the fast link of a node or a rack; 0: all of any worker."""
        return self.gpus_per_node if self.spans and self.gpus_per_rack is None else 0

    @property
    def nodes_per_rack(self) -> int:
        """Return how many nodes a rack has; 1 where NVLink ends at the node."""
        return (self.gpus_per_rack or self.gpus_per_node) // self.gpus_per_node

    def takes(self, degree: Degree) -> bool:
        """Return whether a worker of a degree lies within a node, or fills several of one rack."""
        return fits_nodes(degree, self.gpus_per_node) and gpus_of(degree) <= (self.gpus_per_rack or gpus_of(degree))


class Capacity(Part):
    """How many GPUs the plan may use in all, and where they are."""

    gpus: Annotated[int, Field(ge=1, le=4096, strict=True)]
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=16)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"pools: the name {twice[0]!r} is used twice; give each pool its own")
        return self

    def pool(self, name: str) -> Pool:
        """Return a pool by name."""
        return next(pool for pool in self.pools if pool.name == name)
