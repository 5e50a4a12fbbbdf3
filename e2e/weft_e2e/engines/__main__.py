"""``python -m weft_e2e.engines``: set up what real engines run from, and say where it is."""

import sys

from weft_e2e.engines.environment import EngineSetupError, ensure


def main() -> int:
    """Return 0 when everything is there."""
    try:
        env = ensure(lambda words: print(words, flush=True))  # noqa: T201 - the command's own words
    except (EngineSetupError, OSError) as error:
        print(f"engine-env: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"engines: {env.root}")  # noqa: T201
    return 0


sys.exit(main())
