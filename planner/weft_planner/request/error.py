"""The error of everything that reads planning requests; apart, so that the operator need not load the planner."""


class RequestError(ValueError):
    """Report a request that cannot be read; ``faults`` are its faults one by one, each naming the field and the fix."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults
