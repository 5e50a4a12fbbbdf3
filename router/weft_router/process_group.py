"""Run one router process per core behind one port: start them, pass the end on to them, replace one that dies."""

import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

log = logging.getLogger(__name__)

RESTART_S = 1.0
"""Between two starts in a child's place: one that cannot live shall not eat a core."""


def run(processes: int, member: Callable[[int], int]) -> int:
    """Run ``member`` in as many processes, given its place; return 0, or the worst status when told to end.

    A member that ends by itself with status 2 has a wrong configuration, which no new start would mend.
    """
    family = _ProcessGroup(processes, member)
    return family.run()


class _ProcessGroup:
    def __init__(self, processes: int, member: Callable[[int], int]) -> None:
        self._member = member
        self._processes = processes
        self._pids: dict[int, int] = {}
        self._started: dict[int, float] = {}
        self._ending = False
        self._worst = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        for place in range(self._processes):
            self._start(place)
        while self._pids:
            pid, status = os.wait()
            if pid not in self._pids:
                continue
            place = self._pids.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if self._ending or code == 2:
                self._worst = max(self._worst, abs(code))
                if code == 2:
                    self._end(signal.SIGTERM, None)
                continue
            log.error("process_died", extra={"place": place, "status": code})
            time.sleep(max(0.0, self._started[place] + RESTART_S - time.monotonic()))
            self._again(place)
        return self._worst

    def _again(self, place: int) -> None:
        if not self._ending:
            self._start(place)

    def _start(self, place: int) -> None:
        pid = os.fork()
        if pid == 0:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os._exit(self._member(place))
        self._pids[pid] = place
        self._started[place] = time.monotonic()

    def _end(self, number: int, _: FrameType | None) -> None:
        self._ending = True
        for pid in self._pids:
            os.kill(pid, number)
