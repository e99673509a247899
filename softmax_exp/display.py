"""What a person sees while a sweep runs: the case, the variant, the phase, the time left; plain lines in a log.

In: what the jobs report.  Out: a progress display on stderr, so that stdout holds the table alone.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from softmax_exp.ranking import host_ms
from softmax_exp.records import Record, Status


class Display:
    """Progress over the jobs of a sweep; a live line on a terminal, one line a finished case elsewhere."""

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs
        self.n_done = 0
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal
        self._started = time.monotonic()
        columns = (
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[left]}", style="dim"),
        )
        self._progress = Progress(*columns, console=self.console, transient=True, disable=not self.live)
        self._task = self._progress.add_task("starting", total=n_jobs, left="")
        self._progress.start()

    def case(self, title: str) -> None:
        """A job begins."""
        self._title = title
        self.phase("", "starting")

    def phase(self, variant: str, phase: str) -> None:
        """What is being done now, for which variant (or for all of them)."""
        words = f"{self._title}  {variant + ': ' if variant else ''}{phase}"
        self._progress.update(self._task, description=words, left=self._time_left())

    def fraction(self, done: float) -> None:
        """How much of the current measuring is done, 0 to 1."""
        self._progress.update(self._task, completed=self.n_done + 0.999 * done, left=self._time_left())

    def done(self, title: str, records: list[Record]) -> None:
        """A job has ended with these records."""
        self.n_done += 1
        self._progress.update(self._task, completed=self.n_done)
        if not self.live:
            cells = ", ".join(_in_short(record) for record in records)
            self.note(f"[{self.n_done}/{self.n_jobs}] {title}: {cells}")

    def note(self, text: str) -> None:
        """Something worth a line of its own."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the live line away."""
        self._progress.stop()

    def _time_left(self) -> str:
        if not self.n_done:
            return ""
        seconds = (time.monotonic() - self._started) / self.n_done * (self.n_jobs - self.n_done)
        minutes, seconds = divmod(round(seconds), 60)
        return f"about {minutes}:{seconds:02d} left"


def _in_short(record: Record) -> str:
    if record.status is not Status.PASSED:
        return f"{record.variant} {record.status}"
    latency = record.device_ms if record.device_ms is not None else host_ms(record)
    return f"{record.variant} {latency:.4g} ms" if latency is not None else f"{record.variant} right, not timed"
