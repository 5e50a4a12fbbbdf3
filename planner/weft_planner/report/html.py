"""Write the pieces of the page: tables, cards, figures; every text is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str,
    words: Iterable[int] = (0,),
    marked: Iterable[int] = (),
    raw: bool = False,
) -> str:
    """Return a table with a caption; columns in ``words`` are texts, rows in ``marked`` stand out.

    ``raw`` cells are markup already.
    """
    left, chosen = set(words), set(marked)
    head = "".join(
        f'<th scope="col"{_kind("words" if i in left else "")}>{escape(name)}</th>' for i, name in enumerate(header)
    )
    body = []
    for k, row in enumerate(rows):
        cells = "".join(_cell(i, cell if raw else escape(cell), left) for i, cell in enumerate(row))
        body.append(f"<tr{_kind('chosen' if k in chosen else '')}>{cells}</tr>")
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def card(label: str, value: str, note: str = "") -> str:
    """Return one figure with its name and a remark."""
    remark = f"<span>{escape(note)}</span>" if note else ""
    return f'<div class="card"><dt>{escape(label)}</dt><dd><b>{escape(value)}</b>{remark}</dd></div>'


def figure(picture: str, *, title: str, caption: str, data: str = "") -> str:
    """Return a picture with its title, what to see in it, and its numbers to unfold."""
    more = f"<details><summary>The numbers</summary>{data}</details>" if data else ""
    return f"<figure><h3>{escape(title)}</h3>{picture}<figcaption>{escape(caption)}</figcaption>{more}</figure>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph."""
    return f"<p{_kind(kind)}>{escape(text)}</p>"


def listed(items: Iterable[str]) -> str:
    """Return a list of texts."""
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def yes_no(held: bool) -> str:
    """Return a coloured yes or no, as markup."""
    return '<span class="yes">yes</span>' if held else '<span class="no">no</span>'


def _cell(index: int, content: str, left: set[int]) -> str:
    if index == 0:
        return f'<th scope="row"{_kind("words" if 0 in left else "")}>{content}</th>'
    return f"<td{_kind('words long' if index in left else '')}>{content}</td>"


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""
