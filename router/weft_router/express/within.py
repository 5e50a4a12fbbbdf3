"""The straight way of a standalone router: the decode worker that a session is bound to is one of this process."""

from time import monotonic

from weft_router.express.passage import Means, Passage
from weft_router.express.usual import AtFront
from weft_router.roles.placing import Placing
from weft_router.rounds.decoding import Decoding
from weft_router.rounds.job import Job


class Within:
    """From a front to the decode duties of its own process."""

    def __init__(self, placing: Placing, decodings: dict[str, Decoding], means: Means) -> None:
        self._placing = placing
        self._decodings = decodings
        self._means = means

    def begin(self, usual: AtFront, job: Job, /) -> None:
        """Find the worker that decodes, and begin the round there."""
        now = monotonic()
        name = self._placing.place_now(job.session, job.inference, now, tenant=job.tenant, class_=job.class_)
        at = self._means.registry.get(name) if name is not None else None
        decoding = self._decodings.get(at.worker) if at is not None else None
        if at is None or decoding is None or decoding.worker.draining or not decoding.worker.engine.healthy:
            usual.go_on(job)
            return
        facts = job.facts
        facts["worker"] = at.worker
        facts["attempts"] = 1
        job.at = at
        Passage(usual, job, decoding, self._means).begin(now)
