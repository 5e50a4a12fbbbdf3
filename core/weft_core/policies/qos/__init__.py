"""Rules of quality of service, one file each, which the router applies beside its routing policy."""

from collections.abc import Mapping

from weft_core.policies.policy import QosRule, policies_in

POLICIES: Mapping[str, QosRule] = policies_in(__name__, __path__)
