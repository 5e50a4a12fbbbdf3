"""Length files: rows that are neither sessions nor timed calls, such as the documents of a question.

Only single figures can be drawn from them. A document is read as what one later round adds, a question with its
first document as the first prompt.
"""

from collections import defaultdict

from weft_planner.traces.fields import Row, counts, tokens

_DOCUMENTS = (
    "lengths of documents: a question with its first document is a first prompt, each further document what a later "
    "round adds; the file has no sessions"
)


class LengthRows:
    """Gathers the figures of length rows."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)
        self._documents = False

    def add(self, row: Row) -> None:
        """Take one line.

        Raises:
            LineError: a field is missing or wrong.
        """
        if "doc_tokens" in row:
            documents = counts(row, "doc_tokens")
            question = tokens(row, "question_tokens") if "question_tokens" in row else 0
            answers = counts(row, "answer_tokens") if row.get("answer_tokens") else []
            self._documents = True
            self._values["first_prompt"].append(question + documents[0])
            self._values["increment"] += documents[1:]
            self._values["decode"] += answers
        else:
            rounds = tokens(row, "rounds")
            first = tokens(row, "query_and_tools_tokens")
            answer = tokens(row, "final_answer_tokens", least=0)
            self._values["rounds"].append(rounds)
            self._values["first_prompt"].append(first)
            if answer:  # 0: the run gave none
                self._values["decode"].append(answer)

    @property
    def lengths(self) -> dict[str, tuple[float, ...]]:
        """Return the values of each figure that the file has."""
        return {name: tuple(values) for name, values in self._values.items() if values}

    @property
    def notes(self) -> tuple[str, ...]:
        """Say how the rows were read."""
        if self._documents:
            return (_DOCUMENTS,)
        return ("rounds, first prompts and final answers only; the file does not tell what later rounds add",)


def is_length(row: Row) -> bool:
    """Return whether a line is a row of a length file."""
    return "doc_tokens" in row or "query_and_tools_tokens" in row
