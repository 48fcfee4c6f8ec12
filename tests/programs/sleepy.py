"""Sends, then sleeps without touching the socket: serve ADDR PORT | connect ADDR PORT."""
import socket
import sys
import time

SIZE = 300000
mode, addr, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if mode == "serve":
    with socket.create_server((addr, port)) as listener:
        print("listening")
        sock, _ = listener.accept()
        got = 0
        while got < SIZE:
            data = sock.recv(65536)
            assert data, got
            got += len(data)
        print("got", got)
        sock.recv(1)
else:
    sock = socket.create_connection((addr, port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SIZE)
    sock.sendall(b"x" * SIZE)
    time.sleep(600)
