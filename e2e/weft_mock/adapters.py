"""Load and unload LoRA adapters by vLLM's endpoints, which it has with VLLM_ALLOW_RUNTIME_LORA_UPDATING.

The mock engine has no weights: every path holds an adapter, unless a fault says otherwise.
"""

from collections.abc import Mapping

from aiohttp import web

from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.fields import read_flag
from weft_mock.http_bodies import read_object


def add_adapters(app: web.Application, engine: Engine) -> None:
    """Serve the endpoints for this engine."""
    endpoints = _Adapters(engine)
    app.router.add_post("/v1/load_lora_adapter", endpoints.load)
    app.router.add_post("/v1/unload_lora_adapter", endpoints.unload)


class _Adapters:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loaded = engine.config.adapters

    async def load(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        name, path = _text(body, "lora_name"), _text(body, "lora_path")
        if not name or not path:
            raise ApiError(400, "Both 'lora_name' and 'lora_path' must be provided.", kind="InvalidUserInput")
        if name in self._loaded and not read_flag(body, "load_inplace"):
            raise ApiError(
                400,
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                kind="InvalidUserInput",
            )
        if self._engine.faults.no_adapters:
            raise ApiError(404, f"Loading lora {name} failed: No adapter found for {path}", kind="NotFoundError")
        self._loaded[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        name = _text(await read_object(request), "lora_name")
        if not name:
            message = "'lora_name' needs to be provided to unload a LoRA adapter."
            raise ApiError(400, message, kind="InvalidUserInput")
        if name not in self._loaded:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.", kind="NotFoundError")
        del self._loaded[name]
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


def _text(body: Mapping[str, object], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ApiError(400, f"{name}: a text is needed, got {value!r}", param=name)
    return value
