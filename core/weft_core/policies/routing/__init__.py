"""Routing policies, one file each: where a prefill runs."""

from collections.abc import Mapping

from weft_core.policies.policy import RoutingPolicy, policies_in

POLICIES: Mapping[str, RoutingPolicy] = policies_in(__name__, __path__)
