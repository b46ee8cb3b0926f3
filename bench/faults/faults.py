"""Kills parts of a supervised run again and again, and attacks a run from the network, on this machine alone.

    python bench/faults/faults.py [--short] [--kills N] [--seconds LIMIT] [--seed SEED] TRAINER

TRAINER is the binary. Two runs of two ranks each, on the host device:

- Kills. `supervise -- mpirun` writes a checkpoint every 20 steps. Its ranks and its mpirun are killed (SIGKILL) or
  stopped (SIGSTOP) in turn, after a random time. Each time the run must write a new checkpoint afterwards, by itself.
- Attacks. A stranger connects to every TCP port on which the run's processes listen, and sends the beginning of a
  message, or nothing, or noise. While the connections are open the run must go on. It must not listen on any port of
  a rank.

Prints a table for each, with the longest time that it took. Exits with 1 if a run did not go on within 90 s, or if the
whole takes longer than LIMIT (600 s, in the short form 120 s). The short form has one kill and two attacks, and takes
about 10 s on an idle machine. It needs Linux, Open MPI's mpirun and Python's standard library.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENCE = 90
FLAGS = ["--preset=tiny", "--device=host", "--steps=1000000", "--eval-interval=0", "--threads=1", "--log-interval=1000",
         "--global-batch-size=4", "--seq-length=32", "--layers=1", "--distributed-timeout-seconds=5"]
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2"]
VICTIMS = [("rank 1", "KILL"), ("rank 0", "KILL"), ("mpirun", "KILL"), ("rank 1", "STOP"), ("both ranks", "KILL"),
           ("everything", "KILL")]
ATTACKS = [("half a message", b"OPA", 1), ("nothing", b"", 1), ("64 zero bytes", bytes(64), 1),
           ("64 KiB of noise", random.Random(1).randbytes(1 << 16), 1), ("nothing, 200 times", b"", 200)]


class Failed(Exception):
    """A promise that was not kept."""


def children(process):
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def below(process):
    """The processes below one."""
    return [descendant for child in children(process) for descendant in [child, *below(child)]]


def listening_ports(process):
    """The TCP ports on which a process listens."""
    own = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:
            pass
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            port = int(words[1].rsplit(":", 1)[1], 16)
            if words[3] == "0A" and port and f"socket:[{words[9]}]" in own:
                ports.add(port)
    return sorted(ports)


class Run:
    """A run in a folder of its own."""

    def __init__(self, words, folder, until):
        self.folder, self.until = folder, until
        folder.mkdir()
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.output = open(folder / "output", "wb")
        self.process = subprocess.Popen([*words, *FLAGS, "--log-dir", folder / "log"], env=environment,
                                        stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT)

    def steps(self):
        try:
            return (self.folder / "log/metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def newest(self):
        """The number of steps in the newest checkpoint."""
        names = [path.name for path in (self.folder / "saved").glob("step-*")] if (self.folder / "saved").exists() else []
        return max((int(name[5:]) for name in names if name[5:].isdigit()), default=0)

    def wait(self, what, condition):
        """Waits until a condition holds; returns the seconds that it took."""
        begun = time.monotonic()
        while not condition():
            now = time.monotonic()
            if now - begun > PATIENCE or now > self.until:
                raise Failed(f"{what} did not happen within {now - begun:.0f} s")
            if self.process.poll() is not None:
                raise Failed(f"the run ended with {self.process.returncode} while it waited for {what}")
            time.sleep(0.02)
        return time.monotonic() - begun

    def end(self):
        """Ends everything, however the run is. The supervisor's children end with it."""
        everything = [self.process.pid, *below(self.process.pid)]
        for process in everything:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait()
        self.output.close()


def kill(run, victim, how):
    """Kills or stops processes of a supervised run; returns the seconds until the next new checkpoint."""
    run.wait("a run of two ranks", lambda: [len(children(child)) for child in children(run.process.pid)] == [2])
    mpirun = children(run.process.pid)[0]
    ranks = sorted(children(mpirun))
    victims = {"rank 0": ranks[:1], "rank 1": ranks[1:], "mpirun": [mpirun], "both ranks": ranks,
               "everything": [mpirun, *ranks]}[victim]
    for process in victims:
        os.kill(process, signal.Signals["SIG" + how])
    took = run.wait("the end of the ranks", lambda: not any(Path(f"/proc/{rank}/exe").exists() for rank in ranks))
    newest = run.newest()
    return took + run.wait("a new checkpoint", lambda: run.newest() > newest)


def attack(run, payload, connections):
    """Connects to all ports of a run's processes; returns the number of connections and the seconds for 10 more steps."""
    mpirun = run.process.pid
    run.wait("the end of listening ranks", lambda: not any(listening_ports(rank) for rank in below(mpirun)))
    strangers = []
    try:
        for port in listening_ports(mpirun):
            for _ in range(connections):
                try:
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
                    strangers.append(stranger)
                    stranger.sendall(payload)
                except OSError:
                    pass  # an IPv6 port, or one that hangs up on noise
        before = run.steps()
        return len(strangers), run.wait("10 more steps", lambda: run.steps() >= before + 10)
    finally:
        for stranger in strangers:
            stranger.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trainer")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    trainer = Path(arguments.trainer).resolve()
    until = time.monotonic() + (arguments.seconds or (120 if arguments.short else 600))
    kills = arguments.kills if arguments.kills is not None else (1 if arguments.short else 30)
    attacks = ATTACKS[:2] if arguments.short else ATTACKS
    chance, times, failures = random.Random(arguments.seed), {}, []
    print(f"seed {arguments.seed}\n\n| attack | connections | longest time for 10 steps (s) |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        run = Run([*MPIRUN, trainer], Path(folder) / "attacked", until)
        try:
            run.wait("the first steps", lambda: run.steps() >= 3)
            for name, payload, connections in attacks:
                made, took = attack(run, payload, connections)
                print(f"| {name} | {made} | {took:.1f} |", flush=True)
        except Failed as failure:
            failures.append(f"{name}: {failure}" if run.steps() >= 3 else str(failure))
        finally:
            run.end()
        flags = ["--save", Path(folder) / "killed/saved", "--save-interval=20", "--checkpoint-keep=2"]
        words = [trainer, "supervise", "--max-restarts=5", "--", *MPIRUN, trainer, *flags]
        run = Run(words, Path(folder) / "killed", until)
        victim = "the start"
        try:
            run.wait("the first checkpoint", lambda: run.newest() > 0)
            for number in range(kills):
                victim, how = VICTIMS[number % len(VICTIMS)]
                time.sleep(chance.uniform(0, 0.2 if arguments.short else 2))
                times.setdefault((victim, how), []).append(kill(run, victim, how))
        except Failed as failure:
            failures.append(f"{victim}: {failure}\n{(Path(folder) / 'killed/output').read_text()[-2000:]}")
        finally:
            run.end()
    print("\n| killed | signal | times | longest time to a new checkpoint (s) |\n|---|---|---|---|")
    for (victim, how), all_times in times.items():
        print(f"| {victim} | {how} | {len(all_times)} | {max(all_times):.1f} |")
    for failure in failures:
        print(f"FAILED: {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
