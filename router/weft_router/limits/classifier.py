"""Find out which class a request belongs to: a header, a body field, else what its key, token or tenant says."""

from collections.abc import Mapping

from weft_router.auth.principal import Principal
from weft_router.config import QosConfig
from weft_router.errors import ApiError, InvalidRequestError


class Classifier:
    """The classes of a service, and who may name which."""

    def __init__(self, qos: QosConfig) -> None:
        self._known = qos.known()
        self._listed = ", ".join(sorted(self._known))
        self._header = qos.class_header
        self._header_lower = qos.class_header.lower()
        self._field = qos.class_field
        self._default = qos.default_class
        self._tenants = {
            name: (tenant.default_class or qos.default_class, None if tenant.classes is None else set(tenant.classes))
            for name, tenant in qos.tenants.items()
        }
        self._alone = len(self._known) == 1

    def of(self, principal: Principal, headers: dict[str, str], body: Mapping[str, object]) -> str:
        """Return the name of a request's class; ``headers`` by lower-case name.

        Raises:
            InvalidRequestError: the header names no class that is known.
            ApiError: 403, the tenant may not use the class it names.
        """
        named = headers.get(self._header_lower)
        if named is None:
            if self._alone:
                return self._default
            value = body.get(self._field)
            named = value if isinstance(value, str) and value in self._known else None
        elif named not in self._known:
            raise InvalidRequestError(
                f"{self._header}: there is no such class; use one of {self._listed}", param=self._header
            )
        default, allowed = self._tenants.get(principal.tenant, (self._default, None))
        if named is None:
            # A key's own class may be one that has since been removed from the configuration.
            return principal.class_name if principal.class_name in self._known else default
        if allowed is not None and named not in allowed and named != default and named != principal.class_name:
            raise ApiError(
                f"this tenant may not use class {named!r}; leave it out, or ask for it to be allowed",
                status=403,
                kind="permission_error",
                param=self._header,
                code="class_not_allowed",
            )
        return named
