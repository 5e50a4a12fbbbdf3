"""A small model of the scheduler's rules for where a pod may go: required pod affinity and anti-affinity, and spread.

As in Kubernetes 1.35: a required affinity holds on a node whose domain has a pod that it chooses, and where there is no
such pod at all, for a pod that it chooses itself; a node without the label fits neither. A spread is counted over the
nodes that there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft_operator.api.objects import Manifest

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass
class Node:
    """A node with its labels, what it has room for, and the pods on it."""

    labels: Mapping[str, str]
    slots: int
    pods: list[Manifest] = field(default_factory=list)


def fits(pod: Manifest, node: Node, nodes: Sequence[Node]) -> bool:
    """Return whether the scheduler may put a pod on a node."""
    affinity = pod["spec"].get("affinity") or {}
    near = (affinity.get("podAffinity") or {}).get(REQUIRED) or ()
    apart = (affinity.get("podAntiAffinity") or {}).get(REQUIRED) or ()
    return (
        len(node.pods) < node.slots
        and all(_near(pod, term, node, nodes) for term in near)
        and not any(_in_domain(term, node, nodes) for term in apart)
        and not any(_repels(other, pod, there, node) for there in nodes for other in there.pods)
        and all(_spreads(rule, node, nodes) for rule in pod["spec"].get("topologySpreadConstraints") or ())
    )


def _near(pod: Manifest, term: Mapping[str, Any], node: Node, nodes: Sequence[Node]) -> bool:
    if term["topologyKey"] not in node.labels:
        return False
    anywhere = any(chosen(term["labelSelector"], other) for there in nodes for other in there.pods)
    return _in_domain(term, node, nodes) if anywhere else chosen(term["labelSelector"], pod)


def _in_domain(term: Mapping[str, Any], node: Node, nodes: Sequence[Node]) -> bool:
    key = term["topologyKey"]
    domain = [there for there in nodes if key in node.labels and there.labels.get(key) == node.labels[key]]
    return any(chosen(term["labelSelector"], other) for there in domain for other in there.pods)


def _repels(other: Manifest, pod: Manifest, there: Node, node: Node) -> bool:
    """Return whether a pod that is there keeps this one away: anti-affinity counts both ways."""
    apart = ((other["spec"].get("affinity") or {}).get("podAntiAffinity") or {}).get(REQUIRED) or ()
    return any(
        chosen(term["labelSelector"], pod)
        and term["topologyKey"] in node.labels
        and there.labels.get(term["topologyKey"]) == node.labels[term["topologyKey"]]
        for term in apart
    )


def _spreads(rule: Mapping[str, Any], node: Node, nodes: Sequence[Node]) -> bool:
    if rule["whenUnsatisfiable"] == "ScheduleAnyway":
        return True
    key = rule["topologyKey"]
    counts: dict[str, int] = {}
    for there in nodes:
        if key in there.labels:
            mine = sum(chosen(rule["labelSelector"], other) for other in there.pods)
            counts[there.labels[key]] = counts.get(there.labels[key], 0) + mine
    least = 0 if len(counts) < rule.get("minDomains", 1) else min(counts.values(), default=0)
    return key in node.labels and counts[node.labels[key]] + 1 - least <= rule["maxSkew"]


def chosen(selector: Mapping[str, Any], pod: Manifest) -> bool:
    """Return whether a label selector chooses a pod."""
    labels = pod["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        labels.get(item["key"]) in item["values"] for item in selector.get("matchExpressions") or ()
    )
