"""Ends a training run with a signal at random moments and compares what it ends with to an unbroken run.

    python bench/kill_resume.py TRAINER [TIMES [SEED [KILL | TERM]]]

TRAINER is the binary; the signal is SIGKILL unless TERM is asked for. After SIGTERM a run must end with 0 and have saved
its last step, or have met it before it handled signals. Every step of metrics.jsonl (loss, gradient norm, learning rate, validation loss) and
the hashes of the last checkpoint's weights and moments must be equal; every checkpoint found after a kill must be
complete. A run that ends before its signal is compared and begun anew. Writes bench/results/DATE-kill-resume.md (or
-term-resume.md), and exits with 1 at the first difference.
"""

import collections
import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, INTERVAL = 400, 10
FLAGS = ["--enable-cuda-graph", f"--steps={STEPS}", f"--save-interval={INTERVAL}", "--checkpoint-keep=3", "--threads=1",
         "--hidden-dropout=0.1", "--attention-dropout=0.1", "--eval-interval=50", "--eval-iters=1",
         "--global-batch-size=4"]
KEYS = ("step", "loss", "grad_norm", "lr", "validation_loss")


def command(trainer, folder):
    return [trainer, *FLAGS, "--log-dir", folder / "log", "--save", folder / "saved"]


def outcome(folder):
    """What must be equal: all steps, and the hashes of the final tensors."""
    lines = [json.loads(line) for line in (folder / "log/metrics.jsonl").read_text().splitlines()]
    manifest = json.loads((folder / f"saved/step-{STEPS:08}/manifest.json").read_text())
    hashes = {file["name"]: file["blake3"] for file in manifest["files"] if file["name"].endswith(".safetensors")}
    return [[line.get(key) for key in KEYS] for line in lines], hashes


def check_listed(trainer, folder):
    """Fails if any checkpoint of the folder is damaged; returns how many there are."""
    listed = subprocess.run([trainer, "checkpoint", "list", folder / "saved"], capture_output=True, text=True)
    if "damaged" in listed.stdout:
        sys.exit(f"damaged after a kill:\n{listed.stdout}")
    return listed.stdout.count("complete")


def saved_at_the_end(folder):
    """Whether the newest checkpoint is of the last step in the metrics."""
    steps = len((folder / "log/metrics.jsonl").read_text().splitlines())
    return (folder / f"saved/step-{steps:08}").exists()


def finish(trainer, folder, unbroken):
    subprocess.run(command(trainer, folder), check=True, stdout=subprocess.DEVNULL)
    if outcome(folder) != unbroken:
        sys.exit(f"the run in {folder} differs from the unbroken one")


def main():
    trainer = str(Path(sys.argv[1]).resolve())
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)
    name = sys.argv[4] if len(sys.argv) > 4 else "KILL"
    number = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM}[name]
    rng = random.Random(seed)
    root = Path(tempfile.mkdtemp(prefix="kill-resume-"))
    started = time.monotonic()
    subprocess.run(command(trainer, root / "unbroken"), check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - started
    unbroken = outcome(root / "unbroken")
    done, runs, found, folder = 0, 0, collections.Counter(), root / "run-0"
    while done < kills:
        run = subprocess.Popen(command(trainer, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, whole / 4))
        running = run.poll() is None
        run.send_signal(number)
        if run.wait() not in (0, -number):
            sys.exit(f"a run failed by itself: {run.returncode}")
        ended = run.returncode == 0 and (folder / f"saved/step-{STEPS:08}").exists()
        if running and not ended:
            done += 1
            unfinished = list(folder.glob("saved/*.tmp"))
            if run.returncode == 0:
                found["after it had saved its last step"] += 1
                if unfinished or not saved_at_the_end(folder):
                    sys.exit(f"the run in {folder} has not saved its last step")
            elif number == signal.SIGTERM:
                found["before it handled signals"] += 1
            else:
                found["while a checkpoint was written or removed" if unfinished else "between checkpoints"] += 1
        check_listed(trainer, folder)
        if ended:
            finish(trainer, folder, unbroken)
            runs += 1
            folder = root / f"run-{runs}"
    finish(trainer, folder, unbroken)
    runs += 1
    shutil.rmtree(root)
    date = datetime.date.today().isoformat()
    cpu = next(line.split(": ")[1] for line in open("/proc/cpuinfo") if line.startswith("model name")).strip()
    version = subprocess.run([trainer, "--version"], capture_output=True, text=True).stdout.strip()
    result = Path(__file__).parent / "results" / f"{date}-{name.lower()}-resume.md"
    result.write_text(
        f"# {'Killed' if name == 'KILL' else 'Asked to end'} and resumed, {date}\n\n"
        f"`python bench/kill_resume.py TRAINER {kills} {seed} {name}`, {version}.\nOn {os.cpu_count()} cores of {cpu}, Linux.\n\n"
        f"A run of {STEPS} steps, a checkpoint every {INTERVAL}, about {whole:.1f} s unbroken, met SIG{name} "
        f"{done} times at\nrandom moments, and continued each time; {runs} runs came to their end.\n\n"
        "| | |\n|---|---|\n"
        + "".join(f"| process ended {when} | {count} times |\n" for when, count in sorted(found.items()))
        + "| damaged checkpoints found | 0 |\n"
        f"| runs whose metrics of all {STEPS} steps or final weights and moments differ in any bit | 0 of {runs} |\n"
    )
    print(result.read_text())


if __name__ == "__main__":
    main()
