"""What the steps of finished runs waited for their data.

    python bench/data_wait.py RUN [RUN ...]

RUN is a run's logging.dir. Prints a row a run: median step, median and largest wait of a step in ms, and all waiting as a
share of all time. The first step of a run is left out: nothing was under way to hide its data behind.
"""

import json
import statistics
import sys
from pathlib import Path


def main():
    print("| run | steps | step, ms | wait, ms | 99th percentile | largest | share of time |\n|---|---|---|---|---|---|---|")
    for run in map(Path, sys.argv[1:]):
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
        times = [step["step_ms"] for step in steps]
        waits = sorted(step["data_wait_ms"] for step in steps)
        print(f"| {run.name} | {len(steps)} | {statistics.median(times):.1f} | {statistics.median(waits):.3f} "
              f"| {waits[len(waits) * 99 // 100]:.3f} | {waits[-1]:.3f} | {100 * sum(waits) / sum(times):.2f} % |")


if __name__ == "__main__":
    main()
