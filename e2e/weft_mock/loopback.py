"""Ask the engine of this pod over loopback and write what it answers."""

import http.client
from collections.abc import Mapping

import click


def ask(port: int, method: str, path: str, *, body: str | None = None, headers: Mapping[str, str] | None = None) -> int:
    """Write the engine's answer to stdout or its refusal to stderr; return 1 for a refusal or no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, dict(headers or {}))
        reply = connection.getresponse()
        text = reply.read().decode("utf-8", "replace")
    except OSError as error:
        click.echo(f"no engine answers on 127.0.0.1:{port}: {error}", err=True)
        return 1
    finally:
        connection.close()
    click.echo(text, err=reply.status != 200)
    return 0 if reply.status == 200 else 1
