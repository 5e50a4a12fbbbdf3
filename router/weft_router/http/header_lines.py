"""Write header lines: no value may end its line; otherwise a value could inject headers."""


def checked(value: str) -> str:
    """Return a value that stays on its line.

    Raises:
        ValueError: it would not.
    """
    if "\n" in value or "\r" in value:
        raise ValueError("a header's value holds a line break")
    return value


def header_lines(headers: dict[str, str]) -> str:
    """Return headers as lines; names are the router's own, never a client's.

    Raises:
        ValueError: one would be more than a line.
    """
    checked("".join(headers.values()))  # all at once
    lines = []
    for name, value in headers.items():
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines)


def encoded(head: str) -> bytes:
    """Return a head as it is sent; a character that no header may hold goes as a question mark."""
    try:
        return head.encode("latin-1")  # which compiled code does without looking the encoding up
    except UnicodeEncodeError:
        return head.encode("latin-1", "replace")
