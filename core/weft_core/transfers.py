"""T_kv between workers whose costs come from two profiles: pools of different GPU types that serve one model."""

from weft_core.cost import CostProfile, CostProfileError, Link, TransferCost
from weft_core.parallelism import Degree, links_between


def transfer_between(
    source: CostProfile, destination: CostProfile, *, source_degree: Degree, destination_degree: Degree, link: Link
) -> TransferCost:
    """Return T_kv from a worker of one profile to a worker of another: the slower of both ends sets the pace.

    Each profile tells what its own links carry between workers of these degrees. A degree that one of them lacks is
    scaled from the degrees it has: the time is inverse to the GPUs that hold a prompt on the side with fewer.

    Raises:
        CostProfileError: the profiles are of two models or cache KV in two formats, or one knows nothing of the link.
    """
    if source.model != destination.model:
        raise CostProfileError(
            f"model: KV of {source.model} is of no use to {destination.model}; give profiles of one model"
        )
    if source.kv_bytes_per_token != destination.kv_bytes_per_token:
        raise CostProfileError(
            f"kvBytesPerToken: {source.gpu} caches {source.kv_bytes_per_token} bytes per token and {destination.gpu} "
            f"{destination.kv_bytes_per_token}; one cannot read the other's KV: use one KV data type"
        )
    ends = [_own(profile, source_degree, destination_degree, link) for profile in (source, destination)]
    return TransferCost(alpha=max(end.alpha for end in ends), per_token=max(end.per_token for end in ends))


def _own(profile: CostProfile, source: Degree, destination: Degree, link: Link) -> TransferCost:
    known = profile.transfers.get((source, destination, link))
    if known is not None:
        return known
    pairs = [pair[:2] for pair in profile.transfers if pair[2] == link]
    if not pairs:
        raise CostProfileError(
            f"transfers: profile of {profile.model} on {profile.gpu} has no {link} transfer at all; add one"
        )
    # The nearest number of links, then the pair with most in common, then any fixed order.
    wanted = links_between(source, destination)
    near = min(pairs, key=lambda p: (abs(links_between(*p) - wanted), (p[0] != source) + (p[1] != destination), p))
    cost = profile.transfers[near[0], near[1], link]
    return TransferCost(alpha=cost.alpha, per_token=cost.per_token * links_between(*near) / wanted)
