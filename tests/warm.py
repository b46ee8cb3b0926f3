"""Runs a script in a process that has the tests' packages loaded. To load them takes longer than most scripts do.

    python -E -S tests/warm.py SCRIPT ARGUMENTS...

The first call starts a server, which loads the packages. For each call it forks a process, which runs the script with the
caller's arguments, environment, folder and files. It ends after a minute without calls.
"""

import array
import json
import os
import socket
import subprocess
import sys
import time

# Without a path: the name is gone with the server.
NAME = f"\0warm-python-{os.getuid()}-{sys.executable}"
IDLE_SECONDS = 60
SERVER = "--serve"


def call(script, arguments):
    """Has the server run a script; returns its exit code."""
    connection = connect()
    asked = {"script": script, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    files = array.array("i", [0, 1, 2])
    connection.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    connection.sendall(json.dumps(asked).encode())
    connection.shutdown(socket.SHUT_WR)
    code = connection.recv(1)
    if not code:
        print(f"error: the process that ran {script} was ended", file=sys.stderr)
        return 1
    return code[0]


def connect():
    """A connection to the server, which is started if there is none."""
    end = time.monotonic() + 60
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(NAME)
            return connection
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
        nothing = subprocess.DEVNULL
        command = [sys.executable, __file__, SERVER]
        subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, cwd="/")
        time.sleep(0.2)


def serve():
    """Answers calls until none has come for a while. Callers wait while packages are loaded."""
    import signal

    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(NAME)
    except OSError:
        return  # another one was faster
    listener.listen(64)
    load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener.settimeout(IDLE_SECONDS)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.setblocking(True)
            code = run(connection)
            connection.sendall(bytes([code]))
            os._exit(code)
        connection.close()


def load():
    """Loads what most scripts import."""
    import peft  # noqa: F401
    import safetensors.torch  # noqa: F401
    import tokenizers  # noqa: F401
    import torch  # noqa: F401
    from transformers import GPT2LMHeadModel, LlamaForCausalLM, MixtralForCausalLM  # noqa: F401


def run(connection):
    """Runs the script that a caller asks for; returns its exit code."""
    import runpy
    import traceback

    _, passed, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(12))
    files = array.array("i")
    files.frombytes(passed[0][2])
    for number, file in enumerate(files):
        os.dup2(file, number)
    text = b""
    while part := connection.recv(1 << 16):
        text += part
    asked = json.loads(text)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = [asked["script"], *asked["arguments"]]
    sys.path[0] = os.path.dirname(os.path.abspath(asked["script"]))
    code = 0
    try:
        runpy.run_path(asked["script"], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    if sys.argv[1:] == [SERVER]:
        serve()
    else:
        sys.exit(call(sys.argv[1], sys.argv[2:]))
