"""Hold one request while the engine works on it."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from weft_mock.blocks import Block
from weft_mock.kv_params import RemoteBlocks
from weft_mock.ledger import RequestRecord
from weft_mock.model import START, Generator, block_states, generator

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Limits:
    """When an answer ends."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()


class Emission(NamedTuple):
    """One token of one sequence, and why it was the last, if it was."""

    sequence: "Sequence"
    token: int
    finish: Finish | None


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt with the answer so far, its blocks and where its KV came from.

    ``computed`` tokens have their KV in ``blocks``; a sequence that decodes has exactly one token without.
    ``ready`` is from when on it could run: it came, its KV was read, or it got the blocks it had to wait for.
    ``keep`` says whose pin its blocks become when it ends well: a prefill's (lease) or a decode's (time to live);
    "leak" that nobody frees them, as stock vLLM does after some wrong parameters. ``keep_stopped`` False: an answer
    that ends by itself keeps nothing. ``given`` are first tokens another engine made: they are sent as they are.
    ``rank`` is the data-parallel rank that has it; below 0: the scheduler chooses one. ``adapter`` and ``cache_salt``
    are the names that ``salt`` stands for.
    """

    request_id: str
    tokens: list[int]
    prompt_length: int
    states: list[int]
    record: RequestRecord
    limits: Limits
    arrived: float
    salt: int = 0
    variant: int = 0
    sampled: bool = False
    priority: int = 0
    rank: int = -1
    adapter: str = ""
    cache_salt: str = ""
    keep: Literal["prefill", "decode", "leak"] | None = None
    keep_stopped: bool = True
    given: tuple[int, ...] = ()
    source: RemoteBlocks | None = None
    importing: bool = False
    blocks: list[Block] = field(default_factory=list)
    computed: int = 0
    words: Generator | None = None
    live: bool = True
    handle: RemoteBlocks | None = None
    error: str | None = None
    admitted: float | None = None
    ready: float = 0.0
    started: float | None = None
    last_token: float | None = None

    @classmethod
    def of_prompt(
        cls,
        prompt: list[int],
        *,
        request_id: str,
        block_size: int,
        record: RequestRecord,
        limits: Limits,
        arrived: float,
        salt: int = 0,
        variant: int = 0,
        sampled: bool = False,
        priority: int = 0,
        rank: int = -1,
    ) -> "Sequence":
        """Return a sequence that has computed nothing yet."""
        return cls(
            request_id=request_id,
            tokens=list(prompt),
            prompt_length=len(prompt),
            states=block_states(prompt, block_size),
            record=record,
            limits=limits,
            arrived=arrived,
            salt=salt,
            variant=variant,
            sampled=sampled,
            priority=priority,
            rank=rank,
        )

    @property
    def generated(self) -> int:
        """Return how many tokens were generated."""
        return len(self.tokens) - self.prompt_length

    @property
    def missing(self) -> int:
        """Return how many tokens have no KV yet: one while decoding, more before."""
        return len(self.tokens) - self.computed

    def key(self, index: int) -> int:
        """Return the prefix-cache key of a full block: its state, told apart by the request's cache salt."""
        return self.states[index] ^ self.salt

    def next_token(self, block_size: int) -> int:
        """Generate the next token from the context as the blocks hold it."""
        if self.words is None:
            full = min(self.computed, len(self.tokens)) // block_size
            held = START if full == 0 else self.blocks[full - 1].state
            if held is None:
                raise RuntimeError(f"block {full - 1} of request {self.request_id} was never filled")
            self.words = generator(
                self.tokens, held=full * block_size, held_state=held, variant=self.variant, sampled=self.sampled
            )
        limits = self.limits
        token = self.words.next(may_end=not limits.ignore_eos and self.generated >= limits.min_tokens)
        self.tokens.append(token)
        return token
