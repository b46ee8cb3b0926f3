"""Compares the bits of losses and final weights of this build with those of another commit, on this machine.

    python bench/same_bits.py [COMMIT]

COMMIT is `HEAD` if it is not given: the changes that are not committed are compared with it. Every case of
`engine/tests/steps/digests/cases.rs` that both have is trained for six steps on the host device. The other commit is built
in a work tree of its own under `target`, which is removed again; its build stays, for the next comparison. Exits with 1 if a
case differs. Bits depend on the processor's instructions, so none are stored.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OTHER = ROOT / "target/same-bits"


def bits(root, name):
    """The digest of each case of the sources in `root`."""
    output = OTHER / name
    command = ["cargo", "test", "-q", "-p", "engine", "--test", "steps", "losses_and_weights_are_written"]
    environment = {**os.environ, "STEP_BITS": str(output), "CARGO_TARGET_DIR": str(OTHER / f"build-{name}")}
    if root == ROOT:
        environment.pop("CARGO_TARGET_DIR")
    subprocess.run(command, cwd=root, env=environment, check=True)
    return dict(reversed(line.split(" ", 1)) for line in output.read_text().splitlines())


def main():
    commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    OTHER.mkdir(parents=True, exist_ok=True)
    tree = OTHER / "tree"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--force", "--detach", str(tree), commit], check=True)
    try:
        before = bits(tree, "before")
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    now = bits(ROOT, "now")
    common = sorted(before.keys() & now.keys())
    differ = [case for case in common if before[case] != now[case]]
    for case in differ:
        print(f"other bits: {case}")
    print(f"{len(common)} ranks of cases compared with {commit}: {len(differ)} differ; "
          f"{len(before) + len(now) - 2 * len(common)} are in one build alone")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
