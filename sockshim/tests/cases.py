"""Small socket cases. Each prints what a program sees; the caller runs this file twice, on kernel sockets and under the shim, and
compares. The first argument is the address to use; nothing that differs between runs (ports, times) may be printed."""

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import cases_epoll
from common import HOST, levels, name, pair, wait_for

ONLY = sys.argv[2:]


def case_life():
    s = socket.socket()
    yield levels(s), name(s.recv, 1), name(s.getpeername), name(s.shutdown, 1), name(s.listen)
    s.close()
    s = socket.socket()
    s.bind((HOST, 0))
    yield s.getsockname()[0] == HOST, name(s.accept), name(s.bind, (HOST, 0))
    port = s.getsockname()[1]
    t = socket.socket()
    yield name(t.connect, (HOST, port)), name(t.bind, (HOST, 0))
    s.listen()
    yield name(s.recv, 1), name(s.connect, (HOST, port)), levels(s), s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    u = socket.socket()
    yield name(u.bind, (HOST, port))
    u.connect((HOST, port))
    yield wait_for(s, select.POLLIN)[0][1], name(u.connect, (HOST, port)), u.getpeername() == s.getsockname()
    c, _ = s.accept()
    yield c.getsockname() == u.getpeername(), c.family, c.type, c.proto
    yield c.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN), c.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL)


def case_shutdown():
    c, s = pair()
    c.shutdown(socket.SHUT_WR)
    yield s.recv(10), levels(s), name(c.send, b"x")
    s.sendall(b"half")
    yield c.recv(10)
    s.close()
    yield c.recv(10), levels(c), name(c.shutdown, socket.SHUT_RDWR)


def case_reset():
    c, s = pair()
    c.sendall(b"unread")
    yield wait_for(s, select.POLLIN)[0][1]
    s.close()
    yield wait_for(c, select.POLLRDHUP)[0][1] & select.POLLRDHUP, levels(c)
    yield name(c.recv, 1), c.recv(1), name(c.send, b"x"), c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    c, s = pair()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
    yield name(c.recv, 1)


def case_sigpipe():
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        c, s = pair()
        c.shutdown(socket.SHUT_WR)
        name(c.send, b"x", socket.MSG_NOSIGNAL)
        name(c.send, b"x")
        os._exit(0)
    yield os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def case_recv_flags():
    c, s = pair()
    c.sendall(b"abcdef")
    yield s.recv(3, socket.MSG_PEEK), s.recv(3, socket.MSG_WAITALL), s.recv(3, socket.MSG_WAITALL)
    yield name(s.recv, 1, socket.MSG_DONTWAIT), name(s.recv, 1, socket.MSG_OOB), name(s.recv, 1, socket.MSG_ERRQUEUE)
    c.sendmsg([b"one", b"", b"two"])
    got = s.recvmsg(100, 100)
    yield got[:3], s.getpeername() == c.getsockname()
    c.sendall(b"x")
    yield s.recvfrom(10)
    buffers = [bytearray(2), bytearray(3)]
    c.sendall(b"scatter")
    yield s.recvmsg_into(buffers)[0], buffers, s.recv(10)
    c.sendall(b"queue")
    wait_for(s, select.POLLIN)
    yield struct.unpack("i", fcntl.ioctl(s, 0x541B, b"\0\0\0\0"))[0]
    c.close()
    yield s.recv(10, socket.MSG_WAITALL), s.recv(10)


def case_nonblocking():
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)
    yield name(listener.accept)
    c = socket.socket()
    c.setblocking(False)
    yield c.connect_ex(listener.getsockname()) in (0, errno.EINPROGRESS)
    yield wait_for(c, select.POLLOUT)[0][1], c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    yield c.connect_ex(listener.getsockname()) in (0, errno.EISCONN), name(c.connect, listener.getsockname())
    wait_for(listener, select.POLLIN)
    s, _ = listener.accept()
    yield s.getblocking(), fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK, name(c.recv, 1)
    sent = 0
    while True:
        try:
            sent += c.send(b"z" * 65536)
        except BlockingIOError:
            if not select.select([], [c], [], 0.2)[1]:
                break
    yield levels(c), levels(s)
    s.settimeout(10)
    while sent:
        sent -= len(s.recv(1 << 20))
    yield wait_for(c, select.POLLOUT)[0][1]
    fcntl.ioctl(s, 0x5421, struct.pack("i", 1))
    yield name(os.read, s.fileno(), 1), fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK != 0


def case_refused():
    free = socket.create_server((HOST, 0))
    where = free.getsockname()
    free.close()
    c = socket.socket()
    yield name(c.connect, where), name(c.getpeername), c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    c = socket.socket()
    c.setblocking(False)
    yield c.connect_ex(where) in (errno.EINPROGRESS, errno.ECONNREFUSED)
    yield name(c.connect, where) in ("ECONNREFUSED", "EINPROGRESS")
    c = socket.socket()
    name(c.connect, where)
    listener = socket.create_server(where)
    yield name(c.connect, where), listener.accept()[1] == c.getsockname()


def case_options():
    c, s = pair()
    tcp = socket.IPPROTO_TCP
    for level, opt, value in [
        (tcp, socket.TCP_NODELAY, 1),
        (tcp, socket.TCP_CORK, 1),
        (tcp, socket.TCP_KEEPIDLE, 77),
        (tcp, socket.TCP_KEEPINTVL, 7),
        (tcp, socket.TCP_KEEPCNT, 3),
        (tcp, socket.TCP_KEEPCNT, 1000),
        (tcp, socket.TCP_USER_TIMEOUT, 5000),
        (tcp, socket.TCP_SYNCNT, 4),
        (tcp, socket.TCP_LINGER2, 9),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
        (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1),
        (socket.SOL_SOCKET, socket.SO_OOBINLINE, 1),
        (socket.SOL_SOCKET, socket.SO_PRIORITY, 3),
        (socket.SOL_SOCKET, socket.SO_SNDBUF, 50000),
        (socket.SOL_SOCKET, socket.SO_RCVBUF, 50000),
        (socket.SOL_SOCKET, socket.SO_RCVLOWAT, 5),
        (socket.IPPROTO_IP, socket.IP_TTL, 33),
        (socket.IPPROTO_IP, socket.IP_TOS, 8),
    ]:
        before = name(c.getsockopt, level, opt) if opt not in (socket.SO_SNDBUF, socket.SO_RCVBUF) or level == tcp else 0
        yield level, opt, before, name(c.setsockopt, level, opt, value), name(c.getsockopt, level, opt)
    yield name(c.getsockopt, tcp, 12345), name(c.setsockopt, tcp, 12345, 1), name(c.getsockopt, 4321, 1)
    yield c.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    yield c.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    early = socket.socket()
    early.setsockopt(tcp, socket.TCP_NODELAY, 1)
    early.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 40000)
    early.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener = socket.create_server((HOST, 0))
    early.connect(listener.getsockname())
    yield early.getsockopt(tcp, socket.TCP_NODELAY), early.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    yield early.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), early.getsockopt(tcp, socket.TCP_INFO, 1)


def case_timeouts():
    c, s = pair()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 20000))
    yield name(s.recv, 1), s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    s.settimeout(0.02)
    yield name(s.recv, 1), select.select([s], [], [], 0.01), select.select([s], [s], [], 10)[1] == [s]


def case_signals():
    c, s = pair()

    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    # Python's handlers run after the call has come back with EINTR, so this needs calls that are not restarted.
    signal.signal(signal.SIGALRM, ring)
    signal.siginterrupt(signal.SIGALRM, True)
    listener = socket.create_server((HOST, 0))
    wild = socket.create_server(("0.0.0.0", 0))
    ep = select.epoll()
    ep.register(s, select.EPOLLIN)
    for call in (
        lambda: s.recv(1),
        lambda: wait_for(s, select.POLLIN),
        lambda: select.select([s], [], []),
        listener.accept,
        wild.accept,
        ep.poll,
    ):
        # Again and again, in case one comes before the call.
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        try:
            call()
            result = "returned"
        except Alarm:
            result = "interrupted"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        yield result


def case_dup():
    c, s = pair()
    d = s.dup()
    e = os.dup2(s.fileno(), 700)
    s.close()
    c.sendall(b"abc")
    yield d.recv(1), os.read(e, 1)
    d.close()
    yield os.read(e, 1)
    os.write(e, b"last")
    os.closerange(650, 750)
    yield c.recv(10), c.recv(10)
    n = socket.socket()
    m = n.dup()
    listener = socket.create_server((HOST, 0))
    n.connect(listener.getsockname())
    t, _ = listener.accept()
    n.close()
    m.sendall(b"by the copy")
    yield t.recv(20), m.getpeername() == listener.getsockname()
    c, s = pair()
    f = os.dup(s.fileno())
    os.set_blocking(f, False)
    yield name(os.read, s.fileno(), 1)


def case_fork():
    c, s = pair()
    pid = os.fork()
    if pid == 0:
        c.close()
        s.sendall(b"from the child")
        os._exit(0)
    s.close()
    yield c.recv(100, socket.MSG_WAITALL), os.waitpid(pid, 0)[1]
    listener = socket.create_server((HOST, 0))
    pids = []
    for i in range(3):
        pid = os.fork()
        if pid == 0:
            conn, _ = listener.accept()
            conn.sendall(conn.recv(10))
            own = socket.create_server((HOST, 0))
            me = socket.create_connection(own.getsockname())
            me.sendall(b"x")
            os._exit(0 if own.accept()[0].recv(1) == b"x" else 1)
        pids.append(pid)
    for i in range(3):
        with socket.create_connection(listener.getsockname()) as k:
            k.sendall(b"%d" % i)
            yield k.recv(10), k.recv(10)
    yield [os.waitpid(p, 0)[1] for p in pids]
    listener.settimeout(10)
    pid = os.fork()
    if pid == 0:
        k = socket.create_connection(listener.getsockname())
        os.kill(os.getpid(), signal.SIGKILL)
    conn, _ = listener.accept()
    yield os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), conn.recv(1)


def case_subprocess():
    c, s = pair()
    yield subprocess.run(["echo", "child"], capture_output=True).stdout
    yield subprocess.run(["sh", "-c", "exit 3"], close_fds=False).returncode
    yield os.system("exit 2") >> 8
    c.sendall(b"alive")
    yield s.recv(10)


def case_sendfile():
    c, s = pair()
    with tempfile.TemporaryFile() as f:
        f.write(b"0123456789" * 20000)
        f.flush()
        f.seek(10)
        done = []

        def reader():
            data = b""
            while len(data) < 199990:
                data += s.recv(1 << 16)
            done.append(data == b"0123456789" * 19999)

        t = threading.Thread(target=reader)
        t.start()
        left = 199990
        while left:
            left -= os.sendfile(c.fileno(), f.fileno(), 200000 - left, left)
        t.join()
        yield done, os.sendfile(c.fileno(), f.fileno(), 200000, 10)
    yield name(os.pread, c.fileno(), 1, 0), name(os.lseek, c.fileno(), 0, 0)


def case_wildcard():
    """A listener on all addresses hears kernel and engine alike."""
    listener = socket.create_server(("0.0.0.0", 0))
    port = listener.getsockname()[1]
    for host in (HOST, "127.0.0.1", HOST, "127.0.0.1"):
        k = socket.create_connection((host, port))
        conn, _ = listener.accept()
        k.sendall(b"hello")
        yield conn.recv(5), conn.getsockname()[0] == host
    ep = select.epoll()
    ep.register(listener, select.EPOLLIN)
    listener.setblocking(False)
    yield name(listener.accept), fcntl.fcntl(listener, fcntl.F_GETFL) & os.O_NONBLOCK != 0
    keep = []
    for host in (HOST, "127.0.0.1"):
        keep.append(socket.create_connection((host, port)))
        yield [e for _, e in ep.poll(10)], wait_for(listener, select.POLLIN)[0][1]
        keep.append(listener.accept()[0])
        yield ep.poll(0)
    listener.setblocking(True)
    yield fcntl.fcntl(listener, fcntl.F_GETFL) & os.O_NONBLOCK
    got = []
    t = threading.Thread(target=lambda: got.append(listener.accept()[0].recv(3)))
    t.start()
    k = socket.create_connection((HOST, port))
    k.sendall(b"abc")
    t.join()
    yield got
    six = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    k = socket.create_connection((HOST, six.getsockname()[1]))
    conn, peer = six.accept()
    yield peer[0].startswith("::ffff:127."), conn.getsockname()[0] == "::ffff:" + HOST
    mapped = socket.socket(socket.AF_INET6)
    mapped.connect(("::ffff:" + HOST, port))
    yield mapped.getpeername()[0] == "::ffff:" + HOST, mapped.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)


def case_close_while_blocked():
    c, s = pair()
    got = []
    t = threading.Thread(target=lambda: got.append(name(s.recv, 1)))
    t.start()
    s.shutdown(socket.SHUT_RDWR)
    t.join()
    yield got
    listener = socket.create_server((HOST, 0))
    t = threading.Thread(target=lambda: got.append(name(listener.accept)))
    t.start()
    listener.shutdown(socket.SHUT_RDWR)
    t.join()
    yield got


def case_many():
    listener = socket.create_server((HOST, 0), backlog=300)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(200)]
    servers = [listener.accept()[0] for _ in range(200)]
    for i, c in enumerate(clients):
        c.sendall(b"%d" % i)
    p = select.poll()
    for s in servers:
        p.register(s, select.POLLIN)
    total = 0
    while servers:
        for fd, _ in p.poll():
            s = next(s for s in servers if s.fileno() == fd)
            total += int(s.recv(10))
            p.unregister(s)
            servers.remove(s)
            s.close()
    yield total


def main():
    for key, case in [*globals().items(), *vars(cases_epoll).items()]:
        if key.startswith("case_") and (not ONLY or key[5:] in ONLY):
            try:
                for n, result in enumerate(case()):
                    print(key[5:], n, result, flush=True)
            except Exception as e:  # the comparison shows it
                print(key[5:], "raised", type(e).__name__, e, e.__traceback__.tb_next and e.__traceback__.tb_next.tb_lineno, flush=True)


main()
