"""The RBAC right that a refused request would have needed: verb, resource and namespace, as in a Role."""

import re

from weft_operator.errors import Right

_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<rest>.+)")
_ON_ONE = {"GET": "get", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_ON_MANY = {"GET": "list", "POST": "create"}


def right_for(method: str, path: str, *, watching: bool = False) -> Right | None:
    """Return the right that a request needs by its method and path; None for requests that are not for resources."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    plural, _, rest = found["rest"].partition("/")
    name, _, part = rest.partition("/")
    verb = "watch" if watching else (_ON_ONE if name else _ON_MANY).get(method)
    if verb is None:
        return None
    return Right(verb, f"{plural}/{part}" if part else plural, found["group"] or "", found["namespace"] or "")


def missing_right(method: str, path: str, status: int, message: str, *, watching: bool = False) -> Right | None:
    """Return the right whose lack a refusal reports; None where the request was refused for another reason.

    Quotas and admission also answer writes with 403; only RBAC's message names the verb.
    """
    if status != 403:
        return None
    right = right_for(method, path, watching=watching)
    if right is None or (method != "GET" and f"cannot {right.verb} resource" not in message):
        return None
    return right
