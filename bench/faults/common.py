"""What all fault tests share: processes, a run in a folder of its own, and what a run ends with."""

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

PATIENCE = 90
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
COMPARED = ("step", "loss", "grad_norm", "lr", "validation_loss")


class Failed(Exception):
    """A promise that was not kept."""


def mpirun(ranks):
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]


def children(process):
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def below(process):
    """The processes below one."""
    return [descendant for child in children(process) for descendant in [child, *below(child)]]


def is_alive(process):
    """Whether a process exists and is not a zombie."""
    try:
        os.readlink(f"/proc/{process}/exe")
    except OSError:
        return False
    return True


def metrics(folder):
    """The compared numbers of every line of a run's metrics."""
    lines = (folder / "log/metrics.jsonl").read_text().splitlines()
    return [[line.get(key) for key in COMPARED] for line in map(json.loads, lines)]


def tensors(checkpoint):
    """The hashes of a checkpoint's tensor files."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in checkpoint.glob("*.safetensors")}


def checkpoints(trainer, folder):
    """The tensors of each of a run's checkpoints, by its number of steps. Fails unless the trainer finds all complete."""
    found = {int(path.name[5:]): path for path in (folder / "saved").glob("step-*") if path.name[5:].isdigit()}
    if found:
        listed = subprocess.run([trainer, "checkpoint", "list", folder / "saved"], capture_output=True, text=True)
        if listed.returncode != 0 or listed.stdout.count("  complete, ") != len(found):
            raise Failed(listed.stdout + listed.stderr)
    return {step: tensors(path) for step, path in found.items()}


def check_same(folder, steps, reference):
    """Fails if a run did not end with what its reference ended with: every step once, and the same weights and moments."""
    found, expected = metrics(folder), metrics(reference)
    if [line[0] for line in found] != list(range(1, steps + 1)):
        raise Failed(f"the metrics have {len(found)} lines, not each of the {steps} steps once and in order")
    if found != expected:
        first = next(at for at in range(steps) if found[at] != expected[at])
        raise Failed(f"step {first + 1} is {found[first]}, the reference has {expected[first]}")
    last = f"saved/step-{steps:08}"
    if not (folder / last).exists() or tensors(folder / last) != tensors(reference / last):
        raise Failed("the last checkpoint is not the reference's")


class Run:
    """A run in a folder of its own, which logs to `log` and saves to `saved`."""

    def __init__(self, words, folder, until):
        self.folder, self.until = folder, until
        folder.mkdir()
        self.output = open(folder / "output", "wb")
        self.process = subprocess.Popen([*words, "--log-dir", folder / "log"], env=ENVIRONMENT,
                                        stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT)

    def said(self):
        return (self.folder / "output").read_text(errors="replace")

    def steps(self):
        try:
            return (self.folder / "log/metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def newest(self):
        """The number of steps in the newest checkpoint."""
        names = [path.name for path in (self.folder / "saved").glob("step-*")] if (self.folder / "saved").exists() else []
        return max((int(name[5:]) for name in names if name[5:].isdigit()), default=0)

    def ended(self):
        return self.process.poll() is not None

    def wait(self, what, condition, may_end=False):
        """Waits until a condition holds, or the run has ended if it may. Returns the seconds that it took."""
        begun = time.monotonic()
        while not condition():
            now = time.monotonic()
            if now - begun > PATIENCE or now > self.until:
                raise Failed(f"{what} did not happen within {now - begun:.0f} s")
            if self.ended():
                if may_end:
                    break
                raise Failed(f"the run ended with {self.process.returncode} while it waited for {what}")
            time.sleep(0.02)
        return time.monotonic() - begun

    def wait_for_end(self):
        """Waits until the run has ended by itself. It must write checkpoints until then."""
        while not self.ended():
            newest = self.newest()
            self.wait("a new checkpoint or the end", lambda: self.newest() > newest, may_end=True)

    def end(self):
        """Ends everything, however the run is. The supervisor's children end with it."""
        everything = [self.process.pid, *below(self.process.pid)]
        for process in everything:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait()
        self.output.close()
