"""A server hands each connection to another program image, in every way there is; the client checks that it is served.

serve IP PORT WAY    accept one connection for each way, and hand it over
connect IP PORT WAY  ask, and print the answers
"""

import os
import socket
import subprocess
import sys

WAYS = ["pass_fds", "stdio", "exec", "fork_exec", "spawn", "spawn_dup", "system", "twice"]


def answer(way, fd):
    """In the new image: one request, one answer."""
    s = socket.socket(fileno=fd)
    s.settimeout(30)
    me, peer = s.getsockname()[0], s.getpeername()[1]
    got = s.makefile("rb").readline().decode().strip()
    s.sendall(f"{way} {me} {peer} {got}\n".encode())
    s.shutdown(socket.SHUT_WR)
    rest = s.recv(1)
    assert rest == b"", rest
    s.close()


def again(*words):
    return [sys.executable, sys.argv[0], *words]


def hand_over(way, s):
    fd = s.fileno()
    me = again("answer", way, str(fd))
    if way == "pass_fds":
        p = subprocess.Popen(me, pass_fds=[fd])
    elif way == "stdio":
        p = subprocess.Popen(again("answer", way, "0"), stdin=s, stdout=s)
    elif way in ("exec", "twice"):
        p = None
        pid = os.fork()
        if pid == 0:
            os.set_inheritable(fd, True)
            if way == "twice":
                # Through an image that does nothing but pass it on.
                me = ["/bin/sh", "-c", 'exec "$@"', "sh", *me]
            os.execv(me[0], me)
    elif way == "fork_exec":
        p = subprocess.Popen(me, pass_fds=[fd], preexec_fn=lambda: None)
    elif way == "spawn":
        os.set_inheritable(fd, True)
        pid = os.posix_spawn(me[0], me, os.environ)
        p = None
    elif way == "spawn_dup":
        me = again("answer", way, "7")
        actions = [(os.POSIX_SPAWN_DUP2, fd, 7)]
        pid = os.posix_spawn(me[0], me, os.environ, file_actions=actions)
        p = None
    elif way == "system":
        os.set_inheritable(fd, True)
        assert os.system(" ".join(me)) == 0
        s.close()
        return
    s.close()
    status = p.wait() if p else os.waitpid(pid, 0)[1]
    assert status == 0, (way, status)


def serve(ip, port):
    listener = socket.create_server((ip, port))
    print("listening", flush=True)
    for way in WAYS:
        s, _ = listener.accept()
        hand_over(way, s)
    print("served", flush=True)


def connect(ip, port):
    for way in WAYS:
        s = socket.create_connection((ip, port))
        s.settimeout(30)
        s.sendall(f"hello {way}\n".encode())
        got = s.makefile("rb").read().decode()
        want = f"{way} {ip} {s.getsockname()[1]} hello {way}\n"
        assert got == want, (got, want)
        s.close()
    print("answered", len(WAYS), flush=True)


if sys.argv[1] == "answer":
    answer(sys.argv[2], int(sys.argv[3]))
else:
    {"serve": serve, "connect": connect}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
