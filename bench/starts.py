"""Times the start of a run: from the process's start to the end of its first step, part by part.

    python bench/starts.py FOLDER [FLAGS of a run]
    python bench/starts.py /tmp/start --preset llama-8b --bf16 --device cuda

It trains two steps, twice: with the kernels and choices of products kept from earlier runs removed, and with them. TRAINER
names another binary. FOLDER is made and removed.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TRAINER = os.environ.get("TRAINER", "trainer")


def lines(folder, flags, cache):
    """The seconds from the start of the process to each line `start: ...` of the log."""
    command = [TRAINER, *flags, "--steps", "2", "--eval-interval", "0", "--log-dir", str(folder), "--log", "info"]
    began = datetime.datetime.now(datetime.timezone.utc)
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if run.returncode != 0:
        sys.exit(run.stdout[-2000:])
    for line in (folder / "rank-0.jsonl").read_text().splitlines():
        entry = json.loads(line)
        text = entry.get("fields", {}).get("message", "")
        if text.startswith("start: ") or text == "training begins":
            at = datetime.datetime.fromisoformat(entry["timestamp"].replace("Z", "+00:00"))
            yield (at - began).total_seconds(), text.removeprefix("start: ")


def main():
    folder, flags = Path(sys.argv[1]).resolve(), sys.argv[2:]
    folder.mkdir(parents=True)
    for name in ["cold", "warm"]:
        print(f"{name}:")
        before = 0.0
        for seconds, text in lines(folder / name, flags, folder / "cache"):
            print(f"  {seconds:6.2f} s, {seconds - before:+6.2f} s: {text}")
            before = seconds
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
