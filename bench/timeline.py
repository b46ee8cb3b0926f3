"""Where the time of traced steps goes, from the timelines of all ranks that `trainer --trace` wrote.

    mpirun -n 4 trainer --enable-cuda-graph --trace trace.json --trace-steps 2
    python bench/timeline.py trace*.json [--steps 2] [--svg steps.svg] [--merged all.json]

Prints one line a rank: milliseconds a step from the first work to the last, the share in which the rank computes (or copies),
in which nothing but transfers runs, and in which nothing runs; and how much of the transfers' own time is hidden behind
computing. A transfer's time includes its wait for the other side. --svg draws the ranks below each other (needs matplotlib);
--merged puts all ranks into one file for ui.perfetto.dev.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

TRANSFERS = {"all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "send", "receive"}
WORK = {"kernel", "copy", "set", "operation"}
COLOURS = {
    "forward": "#4c78a8",
    "backward": "#f58518",
    "weights": "#e45756",  # what zero bubble puts off of a backward
    "update": "#54a24b",
    "transfer": "#b0b0b0",
    "other": "#d8c9a3",
}


def kind(event):
    """Which of COLOURS an event is."""
    name = event["name"]
    if name.rsplit("/", 1)[-1] in TRANSFERS or "nccl" in event["args"].get("kernel", "").lower():
        return "transfer"
    for start in ("forward", "backward", "weights"):
        if name.startswith(start):
            return start
    return "update" if name.startswith("optimizer") else "other"


def rank_of(path):
    """The rank, and its work as (start, end, kind) in milliseconds since 1970."""
    trace = json.loads(Path(path).read_text())
    base = trace.get("baseTimeNanoseconds", 0) / 1e6
    events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] in WORK and not e["name"].endswith("mark")]
    work = [(base + e["ts"] / 1e3, base + (e["ts"] + e["dur"]) / 1e3, kind(e)) for e in events]
    return trace["traceEvents"][0]["pid"], sorted(work)


def union(spans, gap=0.0):
    """Spans without overlaps; those that are no further apart than a gap become one."""
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + gap:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def length(spans):
    """Milliseconds of spans without overlaps."""
    return sum(end - start for start, end in spans)


def shares(work, steps):
    """Of one rank's work: milliseconds a step; the shares of computing, of transfers alone and of nothing; and how much of
    the transfers is hidden, None without any."""
    start, end = work[0][0], max(end for _, end, _ in work)
    transfers = union((a, b) for a, b, what in work if what == "transfer")
    computing = union((a, b) for a, b, what in work if what != "transfer")
    busy = length(union([*map(tuple, transfers), *map(tuple, computing)]))
    total, exposed = end - start, busy - length(computing)
    hidden = 1 - exposed / length(transfers) if transfers else None
    return total / steps, length(computing) / total, exposed / total, 1 - busy / total, hidden


def draw(ranks, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = min(work[0][0] for _, work in ranks)
    gap = (max(end for _, work in ranks for _, end, _ in work) - first) / 4000  # too narrow to be seen
    figure, axes = plt.subplots(figsize=(12, 0.7 + 0.62 * len(ranks)))
    for row, (_, work) in enumerate(ranks):
        for what, colour in COLOURS.items():
            spans = [(a - first, b - a) for a, b in union(((a, b) for a, b, of in work if of == what), gap)]
            place = (row + 0.52, 0.22) if what == "transfer" else (row + 0.05, 0.45)
            axes.broken_barh(spans, place, facecolors=colour, label=what if row == 0 else None)
    axes.set_yticks([row + 0.35 for row in range(len(ranks))], [f"rank {rank}" for rank, _ in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="upper center", ncols=len(COLOURS), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / figure.get_size_inches()[1]))
    figure.savefig(path, metadata={"Date": None} if str(path).endswith("svg") else None)


def merge(paths, to):
    traces = [json.loads(Path(path).read_text()) for path in paths]
    first = min(trace["baseTimeNanoseconds"] for trace in traces)
    events = []
    for trace in traces:
        shift = (trace["baseTimeNanoseconds"] - first) / 1e3
        events += [event | {"ts": event["ts"] + shift} if "ts" in event else event for event in trace["traceEvents"]]
    Path(to).write_text(json.dumps({"displayTimeUnit": "ms", "baseTimeNanoseconds": first, "traceEvents": events}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--steps", type=int, default=2, help="steps that were traced")
    parser.add_argument("--svg")
    parser.add_argument("--merged")
    options = parser.parse_args()
    if options.svg and importlib.util.find_spec("matplotlib") is None:
        print("error: --svg needs matplotlib. Fix: pip install matplotlib, or leave --svg out", file=sys.stderr)
        sys.exit(2)
    ranks = sorted(map(rank_of, options.traces))
    print("| rank | ms a step | computing | only transfers | nothing | of transfers hidden |\n|---|---|---|---|---|---|")
    rows = [shares(work, options.steps) for _, work in ranks]
    known = [[value for value in column if value is not None] for column in zip(*rows)]
    mean = [sum(column) / len(column) if column else None for column in known]
    for name, row in [*zip((rank for rank, _ in ranks), rows), ("mean", mean)]:
        hidden = "" if row[4] is None else f"{row[4]:.0%}"
        print(f"| {name} | {row[0]:.2f} | {row[1]:.1%} | {row[2]:.1%} | {row[3]:.1%} | {hidden} |")
    if options.svg:
        draw(ranks, options.svg)
    if options.merged:
        merge(options.traces, options.merged)


if __name__ == "__main__":
    main()
