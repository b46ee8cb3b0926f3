"""Draws the curves of real_run.py: training and validation loss of the trainer and PyTorch, by steps and by time.

    python bench/plot_real_run.py curves.csv bench/results/real-run.svg [--title TEXT] [--smooth 50]

Training losses are means over the last --smooth steps; a dot is an evaluation. The interpreter needs `pip install
matplotlib`.
"""

import argparse
import csv
import math

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

# The trainer is drawn over PyTorch, thinner, so that equal curves are both seen.
SIDES = {
    "theirs": {"label": "PyTorch, torch.compile", "color": "#e08214", "width": 2.6},
    "ours": {"label": "trainer", "color": "#2166ac", "width": 1.3},
}


def column(rows, name):
    return [float(row[name]) if row[name] else math.nan for row in rows]


def smoothed(values, window):
    """The mean of the last `window` values at each place, fewer at the beginning."""
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means


def thinned(places, values, most=800):
    """Every n-th point, and the last, so that the picture stays small."""
    kept = sorted({*range(0, len(values), max(1, len(values) // most)), len(values) - 1} - {-1})
    return [places[i] for i in kept], [values[i] for i in kept]


def limits(curves):
    """Losses to show: all but the fall of the first steps, which would flatten the rest."""
    seen = sorted(value for values in curves for value in values if not math.isnan(value))
    low, high = seen[0], seen[int(0.985 * (len(seen) - 1))]
    margin = 0.05 * (high - low) or 0.1
    return low - margin, high + margin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves")
    parser.add_argument("output")
    parser.add_argument("--title", default="GPT-2 124M on the Linux kernel's source, the same samples in the same order")
    parser.add_argument("--smooth", type=int, default=50)
    options = parser.parse_args()
    with open(options.curves) as file:
        rows = list(csv.DictReader(file))
    plt.rcParams.update({"svg.hashsalt": "real run", "font.size": 10, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25})
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), sharex="col", sharey="row", layout="constrained")
    figure.suptitle(options.title)
    shown = {"loss": [], "validation_loss": []}
    for side, look in SIDES.items():
        done = [row for row in rows if row[f"{side}_loss"]]
        by_step = [int(row["step"]) for row in done]
        by_time = [seconds / 60 for seconds in column(done, f"{side}_seconds")]
        training = smoothed(column(done, f"{side}_loss"), options.smooth)
        validation = column(done, f"{side}_validation_loss")
        evaluated = [place for place, value in enumerate(validation) if not math.isnan(value)]
        line = {"color": look["color"], "linewidth": look["width"], "label": look["label"]}
        for at, places in enumerate([by_step, by_time]):
            axes[0][at].plot([places[i] for i in evaluated], [validation[i] for i in evaluated], marker="o",
                             markersize=look["width"] + 2, **line)
            axes[1][at].plot(*thinned(places, training), **line)
        shown["validation_loss"].append([validation[i] for i in evaluated])
        shown["loss"].append(training)
    for row, (name, label) in enumerate([("validation_loss", "validation loss"), ("loss", "training loss")]):
        if any(shown[name]):
            axes[row][0].set_ylim(limits(shown[name]))
        axes[row][0].set_ylabel(f"{label}, nats a token")
        axes[row][0].legend(frameon=False)
    axes[1][0].set_xlabel("steps")
    axes[1][1].set_xlabel("minutes since the process began")
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
