"""Faults of the disk: one call that writes fails, or the process is killed in the middle of it. The next run must end with
the bits of the reference, whatever the fault left."""

import collections
import json
import os
import random
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import Failed, check_same, checkpoints
from layouts import DISK_LAYOUTS, with_chats, write_chats

STEPS, LIMIT = 12, 60
FLAGS = ["--preset=tiny", "--device=host", f"--steps={STEPS}", "--threads=1", "--eval-interval=6", "--eval-iters=1",
         "--global-batch-size=2", "--micro-batch-size=1", "--seq-length=32", "--layers=1", "--hidden-dropout=0.1",
         "--lr-warmup-steps=2", "--save-interval=4", "--checkpoint-keep=2", "--tensorboard", "--wandb"]
KINDS = ["ENOSPC", "EIO", "EDQUOT", "full", "short", "torn", "kill"]
ONLY_WRITES = {"short", "torn"}


def compiled(folder):
    """The shim, compiled into a folder."""
    source, shim = Path(__file__).with_name("disk_faults.c"), folder / "disk_faults.so"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    return shim


class Faulty:
    """Starts runs of a layout with the shim."""

    def __init__(self, trainer, shim, flags):
        self.trainer, self.shim, self.flags = trainer, shim, flags

    def run(self, folder, kind="none", at=0):
        """A run in a folder, whose call number `at` fails. Returns exit code, output, and the lines of the shim."""
        log = folder.with_suffix(".calls")
        log.unlink(missing_ok=True)
        shim = {"LD_PRELOAD": self.shim, "FAULTS_BELOW": folder, "FAULTS_LOG": log, "FAULTS_KIND": kind, "FAULTS_AT": str(at)}
        command = [self.trainer, *FLAGS, *self.flags, "--save", folder / "saved", "--log-dir", folder / "log", "--trace", folder / "trace.json"]
        try:
            ended = subprocess.run(command, env={**os.environ, **shim}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise Failed(f"the run did not end within {LIMIT} s") from None
        lines = log.read_text().splitlines() if log.exists() else []
        return ended.returncode, ended.stdout.decode(errors="replace"), lines


def what(line):
    """The call and the file of a line of the shim, without numbers that differ from run to run."""
    _, call, path = line.removeprefix("fault ").split(" ", 2)
    path = re.sub(r"^.*?/(log|saved|trace\.json)", r"\1", path)
    path = re.sub(r"step-\d+(\.old)?(\.tmp)?", lambda found: "STEP" + (found[1] or "") + (found[2] or ""), path)
    return f"{call} {re.sub(r'tfevents.*', 'tfevents', path)}"


def told(said):
    """The lines of errors and warnings in a run's output."""
    return [line for line in said.splitlines() if re.match(r"error|warning|no checkpoint", line, re.IGNORECASE)]


def check_files(folder):
    """Fails if a run that ended well has left a temporary file, or has a log line twice. The lock file of a killed run stays:
    a lock removes only a file that it made."""
    left = [path for path in folder.rglob("*") if path.name.endswith((".tmp", ".partial"))]
    if left:
        raise Failed(f"{[str(path.relative_to(folder)) for path in left]} is left")
    steps = [json.loads(line)["_step"] for line in (folder / "log/wandb-history.jsonl").read_text().splitlines()]
    if steps != sorted(set(steps)):
        raise Failed(f"wandb-history.jsonl has the steps {steps}")


def one_fault(faulty, template, folder, reference, kind, at):
    """One fault, and the run after it. Returns the call, how the faulty run ended and its words, or `None` if there was no
    such call."""
    if template:
        shutil.copytree(template, folder)
    else:
        folder.mkdir()
    code, said, lines = faulty.run(folder, kind, at)
    hits = [line for line in lines if line.startswith("fault ")]
    if not hits:
        if code:
            raise Failed(f"without a fault the run ended with {code}\n{told(said)}")
        shutil.rmtree(folder)
        return None
    try:
        if "panicked" in said:
            raise Failed("a panic")
        if code not in ([-9] if kind == "kill" else [0, 2, 3]):
            raise Failed(f"the faulty run ended with {code}")
        errors = [line for line in said.splitlines() if line.startswith("error")]
        if len(errors) != (code in (2, 3)):
            raise Failed(f"{len(errors)} lines of errors with exit code {code}")
        expected = checkpoints(faulty.trainer, reference)
        found = checkpoints(faulty.trainer, folder) if (folder / "saved").exists() else {}
        for step, tensors in found.items():
            if step in expected and tensors != expected[step]:
                raise Failed(f"the checkpoint of step {step} is not the reference's")
        if code == 0:
            check_same(folder, STEPS, reference)
        after, words, _ = faulty.run(folder)
        if after:
            raise Failed(f"the next run ended with {after}\n{words}")
        check_same(folder, STEPS, reference)
        checkpoints(faulty.trainer, folder)
        check_files(folder)
    except (Failed, OSError, ValueError, KeyError) as failure:
        raise Failed(f"{kind} at call {hits[0].removeprefix('fault ')}: {failure}\n{told(said)}") from None
    shutil.rmtree(folder)
    return what(hits[0]), code, told(said)


def interrupted(faulty, folder, calls):
    """A run that was killed while it wrote its last checkpoint, with one line of its metrics twice and another cut."""
    folder.mkdir()
    last = [line for line in calls if f"step-{STEPS:08}.tmp/optimizer" in line][3]
    code, said, _ = faulty.run(folder, "kill", int(last.split()[0]))
    if code != -9 or not list((folder / "saved").glob("*.tmp")):
        raise Failed(f"the interrupted run ended with {code}\n{said}")
    path = folder / "log/metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:6], *lines[5:], lines[-1][:20]]))
    return folder


def cases_of(faulty, folder, short, is_plain):
    """The faults to try in runs of a layout: new or resumed run, what it starts from, kind, number of the call. Also how many
    calls write in a new run, and in a resumed one."""
    reference = folder / "reference"
    reference.mkdir()
    code, said, calls = faulty.run(reference)
    if code:
        raise Failed(f"the reference ended with {code}\n{said}")
    check_files(reference)
    if short:
        # Files are written by several threads. On a busy machine a call may have another number in the next run, so a few are
        # tried. A kill while the manifest is written leaves all other files of a checkpoint.
        kind, file = ("torn", "model") if is_plain else ("kill", "manifest")
        last = [line for line in calls if f"step-{STEPS:08}.tmp/{file}" in line and " write " in line][-4:]
        return [("new", None, kind, int(line.split()[0])) for line in last], (len(calls), 0)
    template = interrupted(faulty, folder / "interrupted", calls)
    again = shutil.copytree(template, folder / "count")
    code, said, more_calls = faulty.run(again)
    if code:
        raise Failed(f"the resumed run ended with {code}\n{said}")
    # A fault may add calls: the run goes on in another way.
    cases = [(name, start, kind, int(line.split()[0]))
             for name, start, lines in [("new", None, calls), ("resumed", template, more_calls)] for line in lines
             for kind in KINDS if kind not in ONLY_WRITES or line.split()[1] in ("write", "pwrite", "writev", "copy_file_range")]
    return cases, (len(calls), len(more_calls))


def all_faults(trainer, folder, faults, seed, jobs, short):
    """Makes calls fail, each in each way, or `faults` of these by chance, of runs of every layout. Prints tables, and returns
    what failed."""
    folder.mkdir()
    write_chats(folder / "chats")
    shim, chance = compiled(folder), random.Random(seed)
    failures, met, counts, work = [], [], [], []
    for number, (layout, flags) in enumerate(DISK_LAYOUTS):
        faulty, place = Faulty(trainer, shim, with_chats(flags, folder / "chats")), folder / f"layout-{number}"
        place.mkdir()
        try:
            cases, calls = cases_of(faulty, place, short, not flags)
        except Failed as failure:
            failures.append(f"{layout}: {failure}")
            continue
        counts.append((layout, *calls))
        if not short:
            chance.shuffle(cases)
            share = faults // len(DISK_LAYOUTS) + (number < faults % len(DISK_LAYOUTS))
            cases = cases[:share] if faults else cases
        work += [(layout, faulty, place, case) for case in cases]
    lock = threading.Lock()

    def of(number, layout, faulty, place, case):
        name, start, kind, at = case
        try:
            result = one_fault(faulty, start, place / f"fault-{number}", place / "reference", kind, at)
        except Failed as failure:
            with lock:
                failures.append(f"{layout}, {name} run, {failure}")
                print(f"FAILED: {failures[-1]}", flush=True)
            return
        with lock:
            met.extend([(layout, name, kind, *result)] if result else [])

    with ThreadPoolExecutor(jobs) as pool:
        for job in [pool.submit(of, number, *one) for number, one in enumerate(work)]:
            job.result()
    print("\n| run | calls that write in a new run | in a resumed one |\n|---|---|---|")
    for layout, new, resumed in counts:
        print(f"| {layout} | {new} | {resumed or ''} |")
    print("\n| run | fault | times | ended with 0 | 2 | 3 | killed |\n|---|---|---|---|---|---|---|")
    for layout, name, kind in sorted({(layout, name, kind) for layout, name, kind, *_ in met}):
        codes = collections.Counter(code for *one, _, code, _ in met if one == [layout, name, kind])
        print(f"| {layout}, {name} | {kind} | {codes.total()} | {codes[0]} | {codes[2]} | {codes[3]} | {codes[-9]} |")
    if not short:
        print("\n| failed call, of ENOSPC, EIO and EDQUOT | times | exit codes | without a word |\n|---|---|---|---|")
        errors = [result for result in met if result[2] in ("ENOSPC", "EIO", "EDQUOT")]
        for call in sorted({call for *_, call, _, _ in errors}, key=lambda call: call.split()[::-1]):
            those = [(code, lines) for *_, one, code, lines in errors if one == call]
            codes, silent = sorted({code for code, _ in those}), sum(not lines for _, lines in those)
            print(f"| {call} | {len(those)} | {', '.join(map(str, codes))} | {silent or ''} |")
    print(f"\nDisk faults: {len(met) + len(failures)}")
    return failures
