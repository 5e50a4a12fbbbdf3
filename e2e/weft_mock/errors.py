"""Refuse a request with a status and a message that names the field and the fix."""


class ApiError(Exception):
    """Answer a request with an error; its form on the wire is the dialect's."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        """Carry status, message, the error's type and the parameter it is about."""
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def to_json(self, *, flat: bool = False) -> dict[str, object]:
        """Return the body of the reply: vLLM wraps the error in an object, SGLang and TensorRT-LLM send it flat."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"object": "error", **error} if flat else {"error": error}
