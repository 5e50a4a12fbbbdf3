"""What a refused request would have needed: the verb, resource and namespace of a right, in the words of a role."""

import re

from weft_operator.errors import Right

_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<rest>.+)")
_ON_ONE = {"GET": "get", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_ON_MANY = {"GET": "list", "POST": "create"}


def right_for(method: str, path: str, *, watching: bool = False) -> Right | None:
    """Return the right that a request on a path of the API server needs; None for what is no request on resources."""
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
    """Return the right that a refusal shows to be missing, None where it was refused for another reason.

    Quotas and admission answer writes with 403 too; only for the lack of a right the words name the verb.
    """
    if status != 403:
        return None
    right = right_for(method, path, watching=watching)
    if right is None or (method != "GET" and f"cannot {right.verb} resource" not in message):
        return None
    return right
