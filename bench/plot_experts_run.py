"""Draws the losses of experts_run.py from a quarter of the steps on: validation losses of the mixture and the dense model,
and training losses below.

    python bench/plot_experts_run.py FOLDER experts-run.svg [--title TEXT] [--smooth 50]

FOLDER has `dense.jsonl` and `experts.jsonl`. The interpreter needs `pip install matplotlib`.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

from plot_real_run import smoothed, thinned

LOOKS = {"dense": ("dense", "#e08214"), "experts": ("16 experts, 2 a token", "#2166ac")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output")
    parser.add_argument("--title", default="As many active parameters, the same samples in the same order")
    parser.add_argument("--smooth", type=int, default=50)
    options = parser.parse_args()
    plt.rcParams.update({"svg.hashsalt": "experts run", "font.size": 10, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25})
    figure, axes = plt.subplots(2, 1, figsize=(8, 7), sharex=True, layout="constrained")
    figure.suptitle(options.title)
    shown, last = [[], []], 0
    for name, (label, color) in LOOKS.items():
        steps = [json.loads(line) for line in (options.folder / f"{name}.jsonl").read_text().splitlines()]
        evaluated = [step for step in steps if step.get("validation_loss") is not None]
        training = smoothed([step["loss"] for step in steps], options.smooth)
        validation = [step["validation_loss"] for step in evaluated]
        axes[0].plot([step["step"] for step in evaluated], validation, marker="o", markersize=4, color=color, label=label)
        axes[1].plot(*thinned([step["step"] for step in steps], training), color=color, label=label)
        last = steps[-1]["step"]
        shown[0] += [loss for step, loss in zip(evaluated, validation) if step["step"] >= last / 4]
        shown[1] += [loss for step, loss in zip(steps, training) if step["step"] >= last / 4]
    for axis, values, label in zip(axes, shown, ["validation loss", "training loss"]):
        axis.set_ylim(min(values) - 0.02, max(values))
        axis.set_ylabel(f"{label}, nats a token")
        axis.legend(frameon=False)
    axes[1].set_xlabel("steps")
    axes[1].set_xlim(last / 4, last)
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
