"""Kills a training run with SIGKILL at random moments and compares what it ends with to an unbroken run.

    python bench/kill_resume.py TRAINER [KILLS [SEED]]

TRAINER is the binary. Every step of metrics.jsonl (loss, gradient norm, learning rate, validation loss) and
the hashes of the last checkpoint's weights and moments must be equal; every checkpoint found after a kill must be
complete. A run that ends before its kill is compared and begun anew. Writes bench/results/DATE-kill-resume.md, and
exits with 1 at the first difference.
"""

import collections
import datetime
import json
import os
import random
import shutil
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
    hashes = {file["name"]: file["sha256"] for file in manifest["files"] if file["name"].endswith(".safetensors")}
    return [[line.get(key) for key in KEYS] for line in lines], hashes


def check_listed(trainer, folder):
    """Fails if any checkpoint of the folder is damaged; returns how many there are."""
    listed = subprocess.run([trainer, "checkpoint", "list", folder / "saved"], capture_output=True, text=True)
    if "damaged" in listed.stdout:
        sys.exit(f"damaged after a kill:\n{listed.stdout}")
    return listed.stdout.count("complete")


def finish(trainer, folder, unbroken):
    subprocess.run(command(trainer, folder), check=True, stdout=subprocess.DEVNULL)
    if outcome(folder) != unbroken:
        sys.exit(f"the run in {folder} differs from the unbroken one")


def main():
    trainer = str(Path(sys.argv[1]).resolve())
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)
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
        run.kill()
        if run.wait() not in (0, -9):
            sys.exit(f"a run failed by itself: {run.returncode}")
        if run.returncode == -9:
            done += 1
            unfinished = list(folder.glob("saved/*.tmp"))
            found["while a checkpoint was written or removed" if unfinished else "between checkpoints"] += 1
        check_listed(trainer, folder)
        if run.returncode == 0:
            finish(trainer, folder, unbroken)
            runs += 1
            folder = root / f"run-{runs}"
    finish(trainer, folder, unbroken)
    runs += 1
    shutil.rmtree(root)
    date = datetime.date.today().isoformat()
    cpu = next(line.split(": ")[1] for line in open("/proc/cpuinfo") if line.startswith("model name")).strip()
    version = subprocess.run([trainer, "--version"], capture_output=True, text=True).stdout.strip()
    result = Path(__file__).parent / "results" / f"{date}-kill-resume.md"
    result.write_text(
        f"# Killed and resumed, {date}\n\n"
        f"`python bench/kill_resume.py TRAINER {kills} {seed}`, {version}.\nOn {os.cpu_count()} cores of {cpu}, Linux.\n\n"
        f"A run of {STEPS} steps, a checkpoint every {INTERVAL}, about {whole:.1f} s unbroken, was killed with SIGKILL "
        f"{done} times at\nrandom moments, and continued each time; {runs} runs came to their end.\n\n"
        "| | |\n|---|---|\n"
        + "".join(f"| killed {when} | {count} times |\n" for when, count in sorted(found.items()))
        + "| damaged checkpoints found | 0 |\n"
        f"| runs whose metrics of all {STEPS} steps or final weights and moments differ in any bit | 0 of {runs} |\n"
    )
    print(result.read_text())


if __name__ == "__main__":
    main()
