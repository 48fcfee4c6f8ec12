"""An echo server and its client on asyncio: serve ADDR PORT | connect ADDR PORT CONNECTIONS BYTES."""
import asyncio
import sys


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(addr, port):
    server = await asyncio.start_server(echo, addr, port)
    print("listening")
    await server.serve_forever()


async def one(addr, port, index, size):
    reader, writer = await asyncio.open_connection(addr, port)
    sent = bytes((index + k * k) % 253 for k in range(4099)) * (size // 4099 + 1)
    sent = sent[:size]

    async def send():
        for at in range(0, size, 10000):
            writer.write(sent[at : at + 10000])
            await writer.drain()
        writer.write_eof()

    sender = asyncio.create_task(send())
    got = await reader.read(-1)
    await sender
    writer.close()
    await writer.wait_closed()
    assert got == sent, (index, len(got))


async def connect(addr, port, connections, size):
    await asyncio.gather(*(one(addr, port, i, size) for i in range(connections)))
    print("echoed", connections, "x", size)


mode, addr, port, *rest = sys.argv[1:]
if mode == "serve":
    asyncio.run(serve(addr, int(port)))
else:
    asyncio.run(connect(addr, int(port), *map(int, rest)))
