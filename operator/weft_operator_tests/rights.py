"""What the chart lets the operator do, and what it does according to an audit log. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

MADE = 201


class Right(NamedTuple):
    """One verb on one resource: ("apps", "statefulsets", "patch")."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


def granted(roles: Iterable[Mapping[str, Any]]) -> frozenset[Right]:
    """Return what rendered Roles and ClusterRoles allow, whatever the names of the objects."""
    return frozenset(
        Right(group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def used(log: str) -> frozenset[Right]:
    """Return the rights that the requests of an audit log took, refused ones included.

    Server-side apply that makes an object is a patch for the audit log, and authorised as create besides.
    """
    found = set()
    for event in _events(log):
        ref = event["objectRef"]
        resource = "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)
        right = Right(ref.get("apiGroup", ""), resource, event["verb"])
        found.add(right)
        if right.verb == "patch" and (event.get("responseStatus") or {}).get("code") == MADE:
            found.add(right._replace(verb="create"))
    return frozenset(found)


def refused(log: str) -> tuple[str, ...]:
    """Return the requests that were forbidden, in words."""
    return tuple(
        f"{event['verb']} {event['requestURI']}"
        for event in _events(log)
        if (event.get("responseStatus") or {}).get("code") == 403
        or (event.get("annotations") or {}).get("authorization.k8s.io/decision") == "forbid"
    )


def _events(log: str) -> Iterator[dict[str, Any]]:
    """Yield the events about objects; what everybody may ask (versions, discovery) has none."""
    for line in log.splitlines():
        event = json.loads(line)
        if (event.get("objectRef") or {}).get("resource"):
            yield event
