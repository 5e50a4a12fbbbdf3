"""Print the ledger of this pod's engine as JSON: ``python -m weft_mock.read_ledger``."""

import argparse
import http.client
import sys


def main(arguments: list[str] | None = None) -> int:
    """Write the ledger to standard output; exit status 1 when the engine cannot be reached."""
    parser = argparse.ArgumentParser(prog="python -m weft_mock.read_ledger", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="the engine's port on 127.0.0.1 (default %(default)s)")
    options = parser.parse_args(arguments)
    connection = http.client.HTTPConnection("127.0.0.1", options.port, timeout=10)
    try:
        connection.request("GET", "/mock/ledger")
        reply = connection.getresponse()
        text = reply.read().decode("utf-8", "replace")
    except OSError as error:
        sys.stderr.write(f"no engine answers on 127.0.0.1:{options.port}: {error}\n")
        return 1
    finally:
        connection.close()
    sys.stdout.write(text + "\n")
    return 0 if reply.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
