"""What a refused request would have needed: the verb, resource and namespace of a right, in the words of a role."""

import re
from dataclasses import dataclass

REMEDY = (
    "apply Weft's chart again (helm upgrade), so that the operator's role is that of its version, or add the right "
    "to its role"
)

BY_VALUE = {
    "scheduling.volcano.sh": "operator.gangSchedulers={volcano}",
    "scheduling.run.ai": "operator.gangSchedulers={kai}",
    "scheduling.x-k8s.io": "operator.gangSchedulers={coscheduling}",
    "resource.nvidia.com": "operator.computeDomains=true",
}
"""API groups of other projects: which value of the chart gives the rights to what Weft makes in them."""

_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<rest>.+)")
_ON_ONE = {"GET": "get", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_ON_MANY = {"GET": "list", "POST": "create"}


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A right that a role may give; ``group`` is "" for the core API, ``namespace`` is "" for all of them."""

    verb: str
    resource: str
    group: str
    namespace: str

    def __str__(self) -> str:
        resource, slash, part = self.resource.partition("/")
        named = f"{resource}.{self.group}{slash}{part}" if self.group else self.resource
        return f"{self.verb} {named} {f'in namespace {self.namespace}' if self.namespace else 'in all namespaces'}"

    def lack(self) -> str:
        """Return what to tell of it where it is missing: verb, resource, namespace and the remedy."""
        value = BY_VALUE.get(self.group)
        remedy = f"apply Weft's chart again with {value} (helm upgrade --set '{value}')" if value else REMEDY
        return f"the operator may not {self}; {remedy}"


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


def lacking(method: str, path: str, status: int, message: str, *, watching: bool = False) -> Right | None:
    """Return the right that a refusal shows to be missing, None where it was refused for another reason.

    Quotas and admission answer writes with 403 too; only for the lack of a right the words name the verb.
    """
    if status != 403:
        return None
    right = right_for(method, path, watching=watching)
    if right is None or (method != "GET" and f"cannot {right.verb} resource" not in message):
        return None
    return right
