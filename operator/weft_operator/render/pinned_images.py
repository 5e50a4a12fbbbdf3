"""Pinned images: a service keeps its first router and mock engine images until an upgrade is requested.

An upgrade of the operator must not restart engines that load weights for minutes, so a service keeps its images. It
takes those of the operator when its annotation names them, when all its workers restart anyway, or at once where that
is set. Until then workers that an older operator named by role stay as they are. With planning Off they keep their
names after it, too, because no rollout would replace them step by step. Pure.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from weft_core.plan import canonical_json
from weft_operator.api.objects import POOL_LABEL, Manifest, labels_of, name_of
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects
from weft_operator.workers.fleet import parse_name


class PinnedImages(NamedTuple):
    """The images that come from the operator's settings; ``mock`` is "" where there is none."""

    router: str
    mock: str


def with_pinned_images(
    rendering: Rendering,
    *,
    kept: str,
    wanted: str,
    groups: Sequence[Manifest],
    token: bytes,
    statefulsets: Sequence[Manifest] = (),
) -> Rendering:
    """Return a rendering with the service's images instead of the operator's.

    ``kept`` is what the plan's ConfigMap holds ("": nothing yet), ``wanted`` the router image that the service's
    annotation asks for (one that the operator does not bring is waited for), ``groups`` the WorkerGroups there are,
    ``statefulsets`` those that the service itself owns, from before WorkerGroups existed.
    """
    settings = rendering.settings
    new, old = PinnedImages(settings.router_image, settings.mock_image), read_images(kept)
    # The routers of workers that are named by role know none with both roles.
    may_keep = all(group.role != "both" for group in rendering.record.plan.groups)
    adopted = may_keep and _adopts(rendering.key.name, groups, statefulsets)
    by_hand = may_keep and rendering.spec.planning.mode == "Off" and _most_named_by_role(groups)
    fresh = replace(rendering, images=images_json(new), keeps_role_names=adopted or by_hand)
    if old is None or old == new:
        return fresh
    if not adopted and (settings.router_upgrade == "AtOnce" or wanted == new.router):
        return fresh
    named = adopted or any(item["spec"].get("role") for item in groups)
    if named and not may_keep:
        return fresh
    staying = replace(
        rendering,
        settings=replace(settings, router_image=old.router, mock_image=old.mock),
        images=images_json(old),
        keeps_role_names=named,
    )
    return fresh if not adopted and all_restart(desired_objects(staying, token=token), groups) else staying


def _adopts(service: str, groups: Iterable[Manifest], statefulsets: Iterable[Manifest]) -> bool:
    """Return whether groups that are named by role adopt, or just adopted, StatefulSets of the service itself.

    Other groups, or ones with another revision, would not adopt them. A rollout replaces them once the status of every
    group counts its workers.
    """
    named = (parse_name(service, name_of(item), labels_of(item).get(POOL_LABEL, "")) for item in statefulsets)
    return any(worker is not None and worker.fixed for worker in named) or any(
        item["spec"].get("role") and not (item.get("status") or {}).get("observedGeneration") for item in groups
    )


def _most_named_by_role(groups: Iterable[Manifest]) -> bool:
    """Return whether there are groups that are named by role, with at least as many workers as the others have."""
    by_role, others = [], 0
    for item in groups:
        replicas = int(item["spec"].get("replicas") or 0)
        if item["spec"].get("role"):
            by_role.append(replicas)
        else:
            others += replicas
    return bool(by_role) and sum(by_role) >= others


def all_restart(objects: Iterable[Manifest], groups: Iterable[Manifest]) -> bool:
    """Return whether none of the groups there are keeps its pod template under the objects that are wanted."""
    now = {item["spec"]["templateHash"] for item in groups}
    then = {item["spec"]["templateHash"] for item in objects if item["kind"] == GROUP_KIND}
    return bool(now) and not now & then


def images_json(images: PinnedImages) -> str:
    """Return the text that is stored in the plan's ConfigMap."""
    return canonical_json(images._asdict())


def read_images(text: str) -> PinnedImages | None:
    """Return the images from that text, None where there are none or it is damaged."""
    try:
        body = json.loads(text)
        return PinnedImages(router=str(body["router"]), mock=str(body["mock"])) if body["router"] else None
    except (ValueError, KeyError, TypeError):
        return None
