"""The command line: ``python -m weft_compile --into FOLDER``."""

import argparse
import os
from pathlib import Path

import weft_compile
from weft_compile.building import compile_into


def main() -> None:
    """Parse the command line and compile."""
    parser = argparse.ArgumentParser(
        prog="weft_compile", description=weft_compile.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, required=True, help="an empty or new folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once")
    args = parser.parse_args()
    compile_into(args.into.resolve(), jobs=args.jobs)


if __name__ == "__main__":
    main()
