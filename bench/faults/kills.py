"""Kills of a supervised run's processes, for every layout. The run must end by itself with the bits of its reference."""

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from common import Failed, Run, check_same, checkpoints, children, is_alive, mpirun
from layouts import LAYOUTS, with_chats, write_chats

FLAGS = ["--preset=tiny", "--device=host", "--eval-interval=100", "--eval-iters=1", "--threads=1", "--log-interval=1000",
         "--micro-batch-size=1", "--global-batch-size=4", "--seq-length=32", "--hidden-dropout=0.1",
         "--attention-dropout=0.1", "--distributed-timeout-seconds=5", "--setup-timeout-seconds=20", "--save-interval=20",
         "--checkpoint-keep=2"]
SHORT_LAYOUT = LAYOUTS[1]
# Stops take the longest, so there are few.
VICTIMS = [("last rank", "KILL"), ("rank 0", "KILL"), ("mpirun", "KILL"), ("all ranks", "KILL"), ("everything", "KILL"),
           ("last rank", "STOP"), ("rank 0", "KILL"), ("last rank", "KILL"), ("mpirun", "KILL"), ("everything", "KILL"),
           ("all ranks", "KILL"), ("rank 0", "STOP"), ("all ranks", "STOP")]
# One kill in so many comes while the run starts. The others come after a new checkpoint.
EARLY = 8


def ranks_of(run, ranks):
    """The launcher and the ranks of a supervised run. Without mpirun the trainer is both."""
    starters = children(run.process.pid)
    if len(starters) != 1:
        return None, []
    return starters[0], starters if ranks == 1 else sorted(children(starters[0]))


class Disturbed:
    """A supervised run whose processes are killed."""

    def __init__(self, words, folder, ranks, steps, until):
        self.run, self.ranks, self.steps, self.seen = Run(words, folder, until), ranks, steps, set()

    def is_started(self):
        _, ranks = ranks_of(self.run, self.ranks)
        self.seen.update(ranks)
        return len(ranks) == self.ranks

    def kill(self, victim, how, moment, early):
        """Kills or stops processes, `moment` seconds after the start or after a new checkpoint. Returns the seconds until
        the next new checkpoint, or `None` if the run ended first."""
        run = self.run
        run.wait("a start of all ranks", self.is_started, may_end=True)
        if not early:
            before = run.newest()
            run.wait("a new checkpoint", lambda: run.newest() > before, may_end=True)
        time.sleep(moment)
        run.wait("a start of all ranks", self.is_started, may_end=True)
        starter, ranks = ranks_of(run, self.ranks)
        if run.ended() or len(ranks) != self.ranks:
            return None
        victims = {"rank 0": ranks[:1], "last rank": ranks[-1:], "mpirun": [starter], "all ranks": ranks,
                   "everything": {starter, *ranks}}[victim]
        newest = run.newest()
        if newest == self.steps:
            return None  # it is about to end
        try:
            for process in victims:
                os.kill(process, signal.Signals["SIG" + how])
        except ProcessLookupError:
            return None
        took = run.wait("the end of the ranks", lambda: not any(map(is_alive, ranks)), may_end=True)
        return took + run.wait("a new checkpoint", lambda: run.newest() > newest, may_end=True)

    def finish(self, trainer, reference):
        """Waits for the end of the run and compares it with its reference. Returns how often it was started again."""
        self.run.wait_for_end()
        said = self.run.said()
        if self.run.process.returncode != 0:
            raise Failed(f"the run ended with {self.run.process.returncode}")
        if "panicked" in said:
            raise Failed("a panic")
        checkpoints(trainer, self.run.folder)
        check_same(self.run.folder, self.steps, reference)
        strays = [process for process in self.seen if is_alive(process)]
        if strays:
            raise Failed(f"{len(strays)} processes of the run are left")
        return said.count("starts it again in")


def kills_of_layout(trainer, folder, layout, kills, steps, seed, until):
    """Disturbs runs of a layout until there were so many kills; returns kills, runs, restarts and times to go on."""
    name, ranks, flags = layout
    chance, times, runs, restarts = random.Random(f"{seed} {name}"), [], 0, 0
    starter = [] if ranks == 1 else mpirun(ranks)
    folder.mkdir()
    words = [*starter, trainer, *FLAGS, *with_chats(flags, folder.parent / "chats"), f"--steps={steps}"]
    reference = Run([*words, "--save", folder / "reference/saved"], folder / "reference", until)
    try:
        reference.wait_for_end()
        if reference.process.returncode:
            raise Failed(f"the reference failed\n{reference.said()[-2000:]}")
    finally:
        reference.end()
    order = [("all ranks", "KILL")] if ranks == 1 else VICTIMS
    while len(times) < kills:
        place = folder / f"run-{runs}"
        supervised = [trainer, "supervise", "--max-restarts=5", "--", *words, "--save", place / "saved"]
        disturbed, victim = Disturbed(supervised, place, ranks, steps, until), "the start"
        try:
            while len(times) < kills and not disturbed.run.ended():
                victim, how = order[len(times) % len(order)]
                early = len(times) % EARLY == EARLY - 1
                took = disturbed.kill(victim, how, chance.uniform(0, 0.5), early)
                if took is None:
                    break
                times.append((victim, how, took))
            victim = "the end"
            restarts += disturbed.finish(trainer, folder / "reference")
        except Failed as failure:
            raise Failed(f"{name}, run {runs}, kill {len(times)}, {victim}: {failure}\n{disturbed.run.said()[-3000:]}")
        finally:
            disturbed.run.end()
        runs += 1
    return runs, restarts, times


def all_kills(trainer, folder, layouts, kills, steps, seed, jobs, until):
    """Kills the runs of all layouts, `kills` in all, `jobs` runs at once. Prints tables, and returns what failed."""
    print("\n| layout | runs with the reference's bits | kills | restarts | longest time to go on (s) |\n|---|---|---|---|---|",
          flush=True)
    folder.mkdir()
    write_chats(folder / "chats")
    failures, all_times, lock = [], [], threading.Lock()

    def of(number, layout):
        share = kills // len(layouts) + (number < kills % len(layouts))
        try:
            runs, restarts, times = kills_of_layout(trainer, folder / f"layout-{number}", layout, share, steps, seed, until)
        except Failed as failure:
            with lock:
                failures.append(str(failure))
                print(f"FAILED: {failure}", flush=True)
            return
        with lock:
            all_times.extend(times)
            longest = max(took for _, _, took in times)
            print(f"| {layout[0]} | {runs} | {len(times)} | {restarts} | {longest:.1f} |", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        for job in [pool.submit(of, number, layout) for number, layout in enumerate(layouts)]:
            job.result()
    print("\n| killed | signal | times | longest time to go on (s) |\n|---|---|---|---|")
    for victim, how in dict.fromkeys((victim, how) for victim, how, _ in all_times):
        took = [seconds for one, signal_name, seconds in all_times if (one, signal_name) == (victim, how)]
        print(f"| {victim} | {how} | {len(took)} | {max(took):.1f} |")
    return failures
