"""Sends a run to Weights & Biases while it goes on.

The first line of standard input has the arguments of `wandb.init`, as JSON. Each line after it is a step's row. The last one
is `null`: without it the run did not come to its end. Exit code 3: there is no module `wandb`.
"""

import json
import sys

try:
    import wandb
except ImportError as missing:
    print(missing, file=sys.stderr)
    sys.exit(3)

run = wandb.init(**json.loads(sys.stdin.readline()))
failed = 1
for line in sys.stdin:
    row = json.loads(line)
    if row is None:
        failed = 0
        break
    step = row["_step"]
    run.log({name: value for name, value in row.items() if not name.startswith("_")}, step=step)
run.finish(exit_code=failed)
