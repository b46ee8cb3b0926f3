"""Kills parts of supervised runs, makes the disk fail, and attacks a run from the network, on this machine alone.

    python bench/faults/faults.py [--short] [--only PARTS] [--layouts NUMBERS] [--kills N] [--steps N]
        [--disk-faults N] [--jobs N] [--seconds LIMIT] [--seed SEED] TRAINER

TRAINER is the binary. Everything runs on the host device, in a temporary folder:

- network: a stranger connects to every TCP port on which a run's processes listen, and sends the beginning of a message,
  or nothing, or noise. While the connections are open the run must go on. It must not listen on any port of a rank. A
  stranger who connects while a supervised run starts must not keep it from its first steps.
- kills: runs of every layout under `trainer supervise`, with a checkpoint every 20 steps. Ranks and mpirun are killed
  (SIGKILL) or stopped (SIGSTOP) in turn, after random times. Each run must end by itself with the bits of a run that nobody
  disturbed: every step once in metrics.jsonl, the same losses and norms, the same final weights and moments.
- disk: disk_faults.c, loaded with LD_PRELOAD, makes the n-th call that writes to the run's folders fail, or kills the run in
  the middle of it. Every call and every way, in a new run and in a resumed one, of a plain run, one on packed conversations
  and one of adapters. --disk-faults says how many of these, which the three share. The run must end by itself, with one line
  of error. The next run must end with the reference's bits.

Prints tables. Exits with 1 if anything was otherwise, if a run did not go on within 90 s, or if the kills take longer than
LIMIT (3600 s, in the short form 120 s). The short form has two attacks, one kill and three disk faults, and takes about 15 s on
an idle machine. It needs Linux, a C compiler, Open MPI's mpirun and Python's standard library.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from common import Failed
from disk import all_faults
from kills import SHORT_LAYOUT, all_kills
from layouts import LAYOUTS
from network import ATTACKS, all_attacks


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trainer")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="network,kills,disk")
    parser.add_argument("--layouts", default=",".join(map(str, range(len(LAYOUTS)))))
    parser.add_argument("--kills", type=int, default=504)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--disk-faults", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    trainer, parts, short = Path(arguments.trainer).resolve(), arguments.only.split(","), arguments.short
    until = time.monotonic() + (arguments.seconds or (120 if short else 3600))
    seed, jobs, begun = arguments.seed, arguments.jobs, time.monotonic()
    print(f"seed {seed}\n", flush=True)
    failures = []
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        try:
            if "network" in parts:
                failures += all_attacks(trainer, folder, ATTACKS[:2] if short else ATTACKS, until)
            if "kills" in parts:
                chosen = [SHORT_LAYOUT] if short else [LAYOUTS[int(number)] for number in arguments.layouts.split(",")]
                kills, steps = (1, 60) if short else (arguments.kills, arguments.steps)
                failures += all_kills(trainer, folder / "kills", chosen, kills, steps, seed, jobs, until)
            if "disk" in parts:
                failures += all_faults(trainer, folder / "disk", arguments.disk_faults, seed, jobs, short)
        except Failed as failure:
            failures.append(str(failure))
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"\n{time.monotonic() - begun:.0f} s, failures: {len(failures)}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
