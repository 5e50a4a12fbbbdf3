"""Bindings, one file each: the decode worker of a new session."""

from collections.abc import Mapping

from weft_core.policies.policy import BindingPolicy, policies_in

POLICIES: Mapping[str, BindingPolicy] = policies_in(__name__, __path__)
