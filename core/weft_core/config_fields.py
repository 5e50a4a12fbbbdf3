"""Read fields of a Hugging Face ``config.json``, collecting every fault, so that one message names them all."""

from collections.abc import Mapping, Sequence

Json = Mapping[str, object]


class ModelConfigError(ValueError):
    """Report a model config that cannot be used; ``faults`` holds one line per field, each with the fix."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class ConfigFields:
    """Fields of one JSON object; what is missing or wrong is noted and stands in as a harmless value until the end."""

    def __init__(
        self,
        body: Json,
        *,
        where: str,
        faults: list[str],
        renamed: Mapping[str, str] | None = None,
        defaults: Json | None = None,
    ) -> None:
        """Read ``body``, whose place in the whole file is ``where``; faults are appended to ``faults``."""
        self._body = body
        self._where = where
        self._faults = faults
        self._renamed = renamed or {}
        self._defaults = defaults or {}

    def path(self, key: str) -> str:
        """Return a field's name as it stands in the file."""
        name = self._renamed.get(key, key)
        return f"{self._where}.{name}" if self._where else name

    def fault(self, key: str, message: str) -> None:
        """Note what is wrong with a field, once."""
        line = f"{self.path(key)}: {message}"
        if line not in self._faults:
            self._faults.append(line)

    def get(self, key: str) -> object:
        """Return a field as it is, None when it is absent or null."""
        value = self._body.get(self._renamed.get(key, key))
        return self._defaults.get(key) if value is None else value

    def whole(self, key: str, most: int, *, default: int | None = None, least: int = 1) -> int:
        """Return a whole number from ``least`` to ``most``; absent: the default, a fault when there is none."""
        value = self.get(key)
        if value is None:
            if default is None:
                self.fault(key, "is missing; add it as in the model's published config.json")
            return least if default is None else default
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, f"{value!r} is not a whole number")
        elif not least <= value <= most:
            self.fault(key, f"{value} is not between {least} and {most}")
        else:
            return value
        return max(1, least)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a true or false field."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            self.fault(key, f"{value!r} is not true or false")
        return value if isinstance(value, bool) else default

    def rows(self, key: str) -> Sequence[object]:
        """Return a list, empty when it is absent."""
        value = self.get(key)
        if value is None:
            return ()
        if isinstance(value, Sequence) and not isinstance(value, str):
            return value
        self.fault(key, f"{value!r} is not a list")
        return ()

    def part(self, key: str) -> "ConfigFields | None":
        """Return the fields of an object inside this one, None when it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fault(key, f"{value!r} is not an object")
            return None
        return ConfigFields(value, where=self.path(key), faults=self._faults)

    @property
    def parts(self) -> "list[ConfigFields]":
        """Return every object inside this one."""
        return [part for _, part in self.named_parts]

    @property
    def named_parts(self) -> "list[tuple[str, ConfigFields]]":
        """Return every object inside this one, with its name."""
        return [(key, part) for key in self._body if isinstance(self._body[key], Mapping) and (part := self.part(key))]
