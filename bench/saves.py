"""Times saves beside training: the steps around a save, the parts of a save, and dd on the same disk.

    python bench/saves.py FOLDER [FLAGS of a run]
    python bench/saves.py /tmp/saves --preset gpt-1.3b --micro-batch-size 8 --global-batch-size 8 --bf16 --device cuda

It trains in FOLDER, with two saves beside training and one at the end, and keeps the newest. It prints a table. FOLDER is
made and removed; it must have room for two checkpoints. TRAINER names another binary, INTERVAL another number of steps from
save to save than 10: a save should end before the next one begins.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

TRAINER = os.environ.get("TRAINER", "trainer")
INTERVAL = int(os.environ.get("INTERVAL", "10"))
STEPS = 5 * INTERVAL // 2
# Steps that the save may make longer: the copy runs beside the first, the files are written beside some more.
AROUND = 5


def main():
    folder, flags = Path(sys.argv[1]).resolve(), sys.argv[2:]
    # It is removed at the end, so it may hold nothing else.
    folder.mkdir(parents=True)
    log = folder / "log"
    command = [TRAINER, *flags, "--steps", str(STEPS), "--eval-interval", "0", "--save", str(folder / "saved"),
               "--save-interval", str(INTERVAL), "--checkpoint-keep", "1", "--log-dir", str(log), "--log", "info"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode != 0:
        sys.exit(run.stdout[-2000:])
    steps = [json.loads(line)["step_ms"] for line in (log / "metrics.jsonl").read_text().splitlines()]
    around = {step + i for step in range(INTERVAL, STEPS, INTERVAL) for i in range(1, AROUND + 1)}
    steady = statistics.median(ms for step, ms in enumerate(steps, 1) if step > 3 and step not in around)
    print(f"a step, none under way: {steady:.1f} ms, the median")
    for step in range(INTERVAL, STEPS, INTERVAL):
        after = steps[step:step + AROUND]
        print(f"the {AROUND} steps after the save at {step}: {', '.join(f'{ms:.1f}' for ms in after)} ms, "
              f"{100 * (sum(after) / AROUND / steady - 1):+.1f} %")
    text = (log / "run.log").read_text()
    for line in re.findall(r"(?:the save after step|checkpoint after step).*", text):
        print(line)
    newest = max((folder / "saved").glob("step-*"))
    size = sum(file.stat().st_size for file in newest.iterdir())
    shutil.rmtree(folder / "saved")
    began = time.time()
    subprocess.run(["dd", "if=/dev/zero", f"of={folder / 'dd'}", "bs=16M", f"count={-(-size // (16 << 20))}",
                    "conv=fdatasync"], check=True, stderr=subprocess.DEVNULL)
    seconds = time.time() - began
    print(f"dd of as much, {size / 1e9:.2f} GB: {seconds:.2f} s, {size / 1e9 / seconds:.2f} GB/s")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
