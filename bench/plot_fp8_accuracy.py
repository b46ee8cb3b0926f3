"""Draws the curves of fp8_accuracy.py: training loss, how far validation is from bf16, and gradient norm.

    python bench/plot_fp8_accuracy.py curves.csv bench/results/fp8-accuracy.svg [--title TEXT] [--smooth 50]

Training losses and norms are means over the last --smooth steps; a dot is an evaluation. The band is half a percent to
either side of bf16. The interpreter needs `pip install matplotlib`.
"""

import argparse
import csv
import math

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from plot_real_run import column, limits, smoothed, thinned

BASELINE = "bf16"
COLORS = ["#404040", "#2166ac", "#e08214", "#1b7837", "#762a83", "#b2182b"]
BAND = 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves")
    parser.add_argument("output")
    parser.add_argument("--title", default="8-bit products beside bf16, the same samples in the same order")
    parser.add_argument("--smooth", type=int, default=50)
    options = parser.parse_args()
    with open(options.curves) as file:
        rows = list(csv.DictReader(file))
    names = [name.removesuffix(":loss") for name in rows[0] if name.endswith(":loss")]
    plt.rcParams.update({"svg.hashsalt": "fp8 accuracy", "font.size": 10, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25})
    figure, (losses, gaps, norms) = plt.subplots(3, 1, figsize=(8, 9), sharex=True, layout="constrained")
    figure.suptitle(options.title)
    gaps.axhspan(-BAND, BAND, color="#404040", alpha=0.08, linewidth=0)
    shown, shown_norms = [], []
    baseline = column(rows, f"{BASELINE}:validation_loss")
    for color, name in zip(COLORS, names):
        steps = [int(row["step"]) for row in rows]
        line = {"color": color, "label": name, "linewidth": 1.3}
        training = smoothed(column(rows, f"{name}:loss"), options.smooth)
        shown.append(training)
        losses.plot(*thinned(steps, training), **line)
        norm = smoothed(column(rows, f"{name}:grad_norm"), options.smooth)
        shown_norms.append(norm)
        norms.plot(*thinned(steps, norm), **line)
        found = zip(steps, column(rows, f"{name}:validation_loss"), baseline)
        found = [(step, (own / other - 1) * 100) for step, own, other in found if not math.isnan(own / other)]
        if found:
            gaps.plot(*zip(*found), marker="o", markersize=3.5, **line)
    for axes, curves in [(losses, shown), (norms, shown_norms)]:
        axes.set_ylim(limits(curves))
    losses.set_ylabel("training loss, nats a token")
    gaps.set_ylabel(f"validation loss above {BASELINE}, %")
    norms.set_ylabel("gradient norm")
    norms.set_xlabel("steps")
    losses.legend(frameon=False)
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
