"""Attacks on a run from the network: strangers connect to its ports."""

import os
import random
import socket
from pathlib import Path

from common import Failed, Run, below, mpirun

FLAGS = ["--preset=tiny", "--device=host", "--steps=1000000", "--eval-interval=0", "--threads=1", "--log-interval=1000",
         "--global-batch-size=4", "--seq-length=32", "--layers=1", "--distributed-timeout-seconds=5"]
ATTACKS = [("half a message", b"OPA", 1), ("nothing", b"", 1), ("64 zero bytes", bytes(64), 1),
           ("64 KiB of noise", random.Random(1).randbytes(1 << 16), 1), ("nothing, 200 times", b"", 200)]


def listening_ports(process):
    """The TCP ports on which a process listens."""
    own, ports = set(), set()
    try:
        descriptors = list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return []  # it has ended
    for descriptor in descriptors:
        try:
            own.add(os.readlink(descriptor))
        except OSError:
            pass
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue  # a machine without IPv6, or a process that has just ended
        for line in lines:
            words = line.split()
            port = int(words[1].rsplit(":", 1)[1], 16)
            if words[3] == "0A" and port and f"socket:[{words[9]}]" in own:
                ports.add(port)
    return sorted(ports)


def attack(run, payload, connections):
    """Connects to all ports of a run's processes; returns the number of connections and the seconds for 10 more steps."""
    starter = run.process.pid
    run.wait("the end of listening ranks", lambda: not any(listening_ports(rank) for rank in below(starter)))
    strangers = []
    try:
        for port in listening_ports(starter):
            for _ in range(connections):
                try:
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
                    strangers.append(stranger)
                    stranger.sendall(payload)
                except OSError:
                    pass  # an IPv6 port, or one that hangs up on noise
        before = run.steps()
        return len(strangers), run.wait("10 more steps", lambda: run.steps() >= before + 10)
    finally:
        for stranger in strangers:
            stranger.close()


def attack_start(run):
    """Connects to all ports of the first mpirun from its start on, and sends nothing. Returns the number of connections and
    the seconds until the run does its first steps, with that mpirun or a later one."""
    strangers, attacked = {}, []

    def stands():
        for process in [process for process in below(run.process.pid) if name_of(process) in ("mpirun", "orterun")]:
            ports = set(listening_ports(process)) - set(strangers) if process in attacked or not attacked else set()
            for port in ports:
                attacked.append(process)
                try:
                    strangers[port] = socket.create_connection(("127.0.0.1", port), timeout=5)
                except OSError:
                    strangers[port] = None  # an IPv6 port
        return run.steps() >= 3

    try:
        took = run.wait("the first steps", stands)
        return sum(map(bool, strangers.values())), took
    finally:
        for stranger in filter(None, strangers.values()):
            stranger.close()


def name_of(process):
    """The name of a process's program."""
    try:
        return os.path.basename(os.readlink(f"/proc/{process}/exe"))
    except OSError:
        return ""


def all_attacks(trainer, folder, attacks, until):
    """Attacks runs of two ranks: one while it trains, and one while it starts. Prints a table, and returns what failed."""
    print("| attack | connections | longest time for 10 steps (s) |\n|---|---|---|", flush=True)
    run, name = Run([*mpirun(2), trainer, *FLAGS], folder / "attacked", until), "the start"
    try:
        run.wait("the first steps", lambda: run.steps() >= 3)
        for name, payload, connections in attacks:
            made, took = attack(run, payload, connections)
            print(f"| {name} | {made} | {took:.1f} |", flush=True)
    except Failed as failure:
        return [f"{name}: {failure}"]
    finally:
        run.end()
    starter = [trainer, "supervise", "--max-restarts=5", "--", trainer, "launch", "-n", "2", "--"]
    run = Run([*starter, *FLAGS, "--setup-timeout-seconds=10", "--save", folder / "saved"], folder / "held up", until)
    try:
        made, took = attack_start(run)
        print(f"| nothing, while it starts | {made} | {took:.1f} until its first steps |", flush=True)
    except Failed as failure:
        return [f"nothing, while it starts: {failure}\n{run.said()[-2000:]}"]
    finally:
        run.end()
    return []
