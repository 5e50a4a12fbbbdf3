"""The engines that a standalone router stands in front of, as a file names them in JSON or YAML."""

from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import orjson
from pydantic import Field, ValidationError, model_validator

from weft_core.authority import is_http_url
from weft_core.layouts import WorkerRole
from weft_core.worker_roles import has_duty
from weft_router.config.section import ConfigError, Section, WorkerDegree, first_error


class WorkerEntry(Section):
    """One engine by its URL, or as many as ``dns`` (host:port) has addresses."""

    name: str = Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
    role: WorkerRole = "decode"
    role_file: Path | None = None
    """A file with the role, which may change; it must be there at the start, and takes the place of ``role``.

    Its path may be relative to the folder of the file that names it.
    """
    url: str = ""
    dns: str = Field(default="", pattern=r"^([A-Za-z0-9.-]+:[0-9]{1,5})?$")
    degree: WorkerDegree = 1
    pool: str = ""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if bool(self.url) == bool(self.dns):
            raise ValueError("give exactly one of url and dns")
        if self.dns and self.role_file is not None:
            raise ValueError("roleFile: the role of one worker; give url in place of dns")
        if self.url and (not is_http_url(self.url) or urlsplit(self.url).username):
            raise ValueError(
                "url: give one such as http://127.0.0.1:8000 or http://[fd00::7]:8000, without user name and password"
            )
        return self


class _File(Section):
    workers: tuple[WorkerEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [entry.name for entry in self.workers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice}: two workers have this name; give each its own")
        if not any(has_duty(entry.role, "decode") or entry.role_file for entry in self.workers):
            raise ValueError("no worker has the role decode, and somebody has to answer; add one")
        return self


def read_workers(raw: bytes, *, source: str) -> tuple[WorkerEntry, ...]:
    """Parse a file of workers.

    Raises:
        ConfigError: it is neither JSON nor YAML, or a field is unknown, missing or out of range.
    """
    try:
        return _File.model_validate(parsed(raw, source)).workers
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_error(error)}") from error


def parsed(raw: bytes, source: str) -> Any:
    """Return what a file holds in JSON or YAML.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        try:
            import yaml
        except ImportError:  # routers of a cluster read no YAML, and their image has no parser for it
            raise ConfigError(f"{source}: is not JSON ({error.msg}); write JSON, or install pyyaml for YAML") from error
        try:
            return yaml.safe_load(raw)
        except yaml.YAMLError:
            raise ConfigError(f"{source}: is neither JSON nor YAML; check the syntax") from error
