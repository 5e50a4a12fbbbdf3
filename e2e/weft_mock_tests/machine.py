"""Run a mock engine's scheduler without an engine around it."""

from weft_core.cost import CostProfile
from weft_core.kv_tiers import KVTier, KVWrites
from weft_mock.blocks import BlockPool
from weft_mock.kv_params import RemoteBlocks
from weft_mock.ledger import Ledger, RequestRecord
from weft_mock.pacing import Pacing
from weft_mock.pins import PinTable
from weft_mock.scheduler import Scheduler, SchedulerLimits
from weft_mock.sequence import Limits, Sequence
from weft_mock.tiers import Tiers
from weft_mock_tests.engines import profile

SIZE = 16
REMOTE = RemoteBlocks(
    engine_id="d", request_id="x", host="h", port=1, block_ids=(1,), tokens=90, degree=1, expiry=None, cached_tokens=0
)


class Machine:
    """Run a scheduler on virtual time: no clock, no sleeps."""

    def __init__(
        self,
        *,
        tokens: int = 4096,
        chunk: int | None = None,
        batch: int = 256,
        threshold: int = 0,
        block: int = SIZE,
        costs: CostProfile | None = None,
        prefill_only: bool = False,
        tiers: tuple[KVTier, ...] = (),
        writes: KVWrites = "through",
    ) -> None:
        self.pool = BlockPool(tokens // block, block_size=block)
        self.pins = PinTable(self.pool, lease_seconds=30, ttl_seconds=120)
        self.ledger = Ledger()
        self.scheduler = Scheduler(
            pool=self.pool,
            pins=self.pins,
            pacing=Pacing(costs or profile(), 1, prefill_only=prefill_only),
            ledger=self.ledger,
            limits=SchedulerLimits(batch, chunk, threshold),
            tiers=Tiers(tiers, block_size=block, kv_bytes_per_token=profile().kv_bytes_per_token, writes=writes),
            describe=lambda _request_id, _sequence: REMOTE,
        )
        self.now = 0.0
        self.out: dict[Sequence, list[tuple[float, int]]] = {}

    def add(self, prompt: list[int], *, tokens: int = 8, **fields: object) -> Sequence:
        sequence = Sequence.of_prompt(
            prompt,
            request_id=f"r{len(self.out)}",
            block_size=self.pool.block_size,
            record=RequestRecord("x", "x", "local", len(prompt)),
            limits=Limits(max_tokens=tokens, ignore_eos=True),
            arrived=self.now,
        )
        for name, value in fields.items():
            setattr(sequence, name, value)
        self.out[sequence] = []
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> bool:
        self.scheduler.admit(self.now)
        step = self.scheduler.plan()
        if step is None:
            if not self.scheduler.loading:
                return False
            self.now = min(ends for ends, _ in self.scheduler.loading.values())
            return True
        self.now += step.seconds
        for emission in self.scheduler.finish(step, self.now):
            self.out[emission.sequence].append((self.now, emission.token))
        self.pool.check()
        return True

    def run(self, steps: int = 100_000) -> None:
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError("the engine never came to rest")

    def tokens(self, sequence: Sequence) -> list[int]:
        return [token for _, token in self.out[sequence]]

    def times(self, sequence: Sequence) -> list[float]:
        return [at for at, _ in self.out[sequence]]
