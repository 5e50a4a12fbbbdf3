"""How rendered roles and audit logs are read."""

import json
from typing import Any

from weft_operator_tests.rights import Right, granted, refused, used


def event(verb: str, code: int = 200, **ref: str) -> str:
    body: dict[str, Any] = {"verb": verb, "requestURI": "/x", "responseStatus": {"code": code}, "objectRef": ref}
    return json.dumps(body)


def test_rules_are_taken_apart() -> None:
    rule = {"apiGroups": ["apps"], "resources": ["statefulsets", "deployments"], "verbs": ["get", "patch"]}
    assert granted([{"rules": [rule]}]) == {
        Right("apps", resource, verb) for resource in ("statefulsets", "deployments") for verb in ("get", "patch")
    }


def test_an_apply_that_makes_an_object_is_a_creation_too() -> None:
    log = "\n".join(
        [
            event("patch", 201, resource="statefulsets", apiGroup="apps"),
            event("patch", 200, resource="services"),
            event("patch", 200, resource="workergroups", apiGroup="weft.dev", subresource="status"),
            json.dumps({"verb": "get", "requestURI": "/version"}),
        ]
    )
    assert {str(right) for right in used(log)} == {
        "create statefulsets.apps",
        "patch statefulsets.apps",
        "patch services",
        "patch workergroups/status.weft.dev",
    }
    assert refused(log) == ()


def test_what_was_forbidden_is_reported() -> None:
    log = "\n".join([event("list", 403, resource="secrets"), event("get", 404, resource="secrets")])
    assert refused(log) == ("list /x",)
