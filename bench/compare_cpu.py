"""The trainer on the host device beside PyTorch on the same CPU: the same model, batch and threads, in turn.

    python bench/compare_cpu.py TRAINER PYTHON [ROUNDS]

TRAINER is the release binary, PYTHON an interpreter with torch. Prints one line a case: median tokens per second of
each over all rounds, their range, and the ratio. Random tokens there, the embedded source here: both are made on the
host before the step and cost next to nothing.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PEER = Path(__file__).parent / "peers" / "pytorch_cpu.py"
CASES = {
    "default, 4 microbatches of 2": dict(layers=2, hidden=64, heads=4, seq=64, micro=2, accumulate=4, steps=150),
    "hidden 256, 4 blocks, batch 8": dict(layers=4, hidden=256, heads=4, seq=128, micro=8, accumulate=1, steps=15),
}


def ours(trainer, case, threads):
    """Median tokens per second of the steps after the first fifth, graphs on."""
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "layers": case["layers"], "hidden": case["hidden"], "heads": case["heads"], "seq-length": case["seq"],
            "micro-batch-size": case["micro"], "global-batch-size": case["micro"] * case["accumulate"],
            "steps": case["steps"], "threads": threads, "eval-interval": 0, "lr-warmup-steps": 2, "log-dir": folder,
        }
        command = [trainer, "--enable-cuda-graph"] + [f"--{name}={value}" for name, value in flags.items()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        steps = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(step["tokens_per_s"] for step in steps[len(steps) // 5 : -1])


def theirs(python, case, threads):
    """Tokens per second of eager PyTorch."""
    flags = {
        "layers": case["layers"], "hidden": case["hidden"], "heads": case["heads"], "seq": case["seq"], "vocab": 256,
        "micro-batch": case["micro"], "accumulate": case["accumulate"], "steps": case["steps"], "threads": threads,
    }
    command = [python, PEER] + [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    return json.loads(output.splitlines()[-1])["tokens_per_s"]


def main():
    trainer, python, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print("| case | threads | trainer tok/s | PyTorch tok/s | ratio |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        for threads in (1, 2):
            pairs = [(ours(trainer, case, threads), theirs(python, case, threads)) for _ in range(rounds)]
            cells = []
            for values in zip(*pairs):
                cells.append(f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})")
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"| {name} | {threads} | {cells[0]} | {cells[1]} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
