"""A memcached client in a few lines: sets and gets values of many sizes, pipelined and one by one."""
import socket
import sys

sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
file = sock.makefile("rb")


def value(i):
    return bytes((i * 7 + k) % 251 for k in range(i * 37 % 997)) * (1 + i % 40)


def expect(line):
    got = file.readline()
    assert got == line, (got, line)


def get(i):
    want = value(i)
    expect(b"VALUE key%d 0 %d\r\n" % (i, len(want)))
    assert file.read(len(want)) == want, i
    global down
    down += len(want)
    expect(b"\r\n")
    expect(b"END\r\n")


def set_command(i):
    return b"set key%d 0 0 %d\r\n%s\r\n" % (i, len(value(i)), value(i))


checked = up = down = 0
for i in range(1000):
    sock.sendall(set_command(i))
    up += len(value(i))
    expect(b"STORED\r\n")
    sock.sendall(b"get key%d\r\n" % i)
    get(i)
    checked += 1
for start in range(0, 1000, 20):
    batch = range(start, start + 20)
    sock.sendall(b"".join(b"get key%d\r\n" % i for i in batch))
    for i in batch:
        get(i)
        checked += 1
print("ok", checked, up, down)
