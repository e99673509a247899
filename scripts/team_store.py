"""What a record costs in a team's store, and whether any is lost: 2,000 runs from 8 processes.

    python scripts/team_store.py [--store server|direct|sqlite|sqlite-server] [--runs 2000] [--processes 8]
                                 [--each-s 0] [--restart] [--uri ADDRESS]

Starts a PostgreSQL and an MLflow server of its own in a temporary folder. Each process has a sweep of its own and logs
its cells one by one, as fast as it can, or one every so many seconds; with --restart both are restarted meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from softmax_exp import tracking
from softmax_exp.config import TrackingSettings
from softmax_exp.sweep import Sweep
from softmax_exp.tracking import StoreError, server
from softmax_exp.tracking.postgres import Cluster
from softmax_exp.tracking.sending import Sender, find_runs
from tests import made_up


def main() -> None:
    """Write the runs, count them, print milliseconds a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("server", "direct", "sqlite", "sqlite-server"), default="server")
    parser.add_argument("--uri", help="a store that runs already, instead")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--each-s", type=float, default=0.0, help="seconds from one record of a process to its next")
    parser.add_argument("--restart", action="store_true", help="PostgreSQL after a third, the server after two")
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        return write(*given.write, given.runs, given.each_s)
    with tempfile.TemporaryDirectory(prefix="team-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        address, restarts = (given.uri, []) if given.uri else stack.enter_context(store(given.store, folder))
        opened = tracking.open_store(TrackingSettings(uri=address), folder)  # its tables, and the experiment
        assert opened is not None
        each = given.runs // given.processes
        command = [sys.executable, __file__, "--runs", str(each), "--each-s", str(given.each_s), "--write"]
        writers = [
            subprocess.Popen(
                [*command, address, str(folder / f"{folder.name}-writer{n}")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(given.processes)
        ]
        for writer in writers:
            next(iter(writer.stdout or ()))  # it is ready; none begins while another is still importing
        started = time.monotonic()
        for writer in writers:
            print("go", file=writer.stdin, flush=True)
        for part, restart in enumerate(restarts if given.restart else [], start=1):
            while written(folder) < part * each * given.processes // 3:
                time.sleep(0.1)
            restart()
        found = [json.loads(writer.communicate()[0]) for writer in writers]
        seconds = time.monotonic() - started
        cells = Counter(
            (run.data.tags["sweep_id"], run.data.tags["cell"])
            for run in find_runs(opened, "tags.kind = 'cell'")
            if run.info.status == "FINISHED" and run.data.tags["sweep_id"].startswith(folder.name)
        )
        times = sorted(each for one in found for each in one["seconds"])
        p50, p95, longest = (1e3 * times[int(share * (len(times) - 1))] for share in (0.5, 0.95, 1.0))
        n_runs = each * given.processes
        print(
            f"{given.uri or given.store}: {given.processes} processes, {n_runs} runs in {seconds:.0f} s on "
            f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f}): a record {p50:.0f} ms, p95 {p95:.0f}, longest "
            f"{longest:.0f}; {sum(one['failed'] for one in found)} sent again; "
            f"lost {n_runs - len(cells)}, doubled {sum(n > 1 for n in cells.values())}"
        )


@contextlib.contextmanager
def store(kind: str, folder: Path) -> Iterator[tuple[str, list[Callable[[], None]]]]:
    """The address of a running store, and what restarts its parts."""
    with contextlib.ExitStack() as stack:
        database, restarts = f"sqlite:///{folder / 'mlflow.db'}", []
        if kind in ("server", "direct"):
            folder.chmod(0o711)
            cluster = Cluster(folder / "postgres")
            stack.callback(cluster.stop)
            cluster.start()
            database = cluster.address
            restarts.append(lambda: (cluster.stop(), cluster.start()))
        if kind in ("sqlite", "direct"):
            yield database, restarts
            return
        if kind == "sqlite-server":
            tracking.open_store(TrackingSettings(), folder)
        port, processes = server.free_port(17000), []
        base = f"http://{server.LOOPBACK}:{port}"

        def start() -> None:
            processes.append(server.start(database, folder / "artifacts", port, subprocess.DEVNULL, n_workers=2))
            if not server.wait_until_up(base, processes[-1]):
                sys.exit("the server did not start")

        stack.callback(lambda: server.end(processes[-1]))
        start()
        restarts.append(lambda: (server.end(processes[-1]), start()))
        yield base, restarts


def written(folder: Path) -> int:
    """How many records the writers have sent or tried to."""
    return sum(path.stat().st_size for path in folder.glob("*-writer*/progress"))


def write(address: str, outputs: str, n_runs: int, each_s: float) -> None:
    """Log the cells of a sweep one by one; print the seconds that each took, and how many had to be sent again."""
    folder = Path(outputs)
    opened = tracking.open_store(TrackingSettings(uri=address), folder)
    assert opened is not None
    sweep = made_up.sweep(folder, [made_up.passed(job, "triton", 512, folder.name) for job in range(n_runs)])
    sender, records, seconds, failed = Sender(sweep, opened), sweep.records(), [], 0
    print("ready", flush=True)
    sys.stdin.readline()
    with (folder / "progress").open("ab", buffering=0) as progress:
        for record in records:
            started = time.monotonic()
            try:
                sender.send([record])
                seconds.append(time.monotonic() - started)
            except StoreError:
                failed += 1
            progress.write(b".")
            time.sleep(max(0.0, each_s - (time.monotonic() - started)))
    send_the_rest(sweep, opened)
    print(json.dumps({"seconds": seconds, "failed": failed}))


def send_the_rest(sweep: Sweep, opened: tracking.Store) -> None:
    """As the end of a sweep does; here for as long as it takes."""
    deadline = time.monotonic() + 120
    while True:
        try:
            tracking.sync(sweep, opened)
            return
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


if __name__ == "__main__":
    main()
