"""Tell the engine of this pod to misbehave: ``python -m weft_mock.fault '{"die_at_token": 5}'``; ``'{}'`` ends it."""

import argparse
import http.client
import sys


def main(arguments: list[str] | None = None) -> int:
    """Send the faults to the engine on loopback; exit status 1 when it refuses or cannot be reached."""
    parser = argparse.ArgumentParser(prog="python -m weft_mock.fault", description=__doc__)
    parser.add_argument("faults", help='a JSON object, such as {"status": 503, "times": 2}; {} clears all')
    parser.add_argument("--port", type=int, default=8000, help="the engine's port on 127.0.0.1 (default %(default)s)")
    options = parser.parse_args(arguments)
    connection = http.client.HTTPConnection("127.0.0.1", options.port, timeout=10)
    try:
        connection.request("POST", "/mock/faults", options.faults, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode("utf-8", "replace")
    except OSError as error:
        sys.stderr.write(f"no engine answers on 127.0.0.1:{options.port}: {error}\n")
        return 1
    finally:
        connection.close()
    (sys.stdout if reply.status == 200 else sys.stderr).write(text + "\n")
    return 0 if reply.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
