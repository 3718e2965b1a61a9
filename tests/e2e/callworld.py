#!/usr/bin/env python3
"""Servers of Debian's own packages behind TLS: callworld.py PEM SEEN grpc=ADDRESS|web-socket=ADDRESS...

Each call is a line of JSON in SEEN: [kind, what its header Authorization had in it]. Both answer each message
when it comes, before there is another one.
"""
import asyncio
import json
import pathlib
import ssl
import sys
import threading

PEM, SEEN = (pathlib.Path(p) for p in sys.argv[1:3])
LOCK = threading.Lock()


def remember(kind, authorization):
    with LOCK, SEEN.open("a") as f:
        f.write(json.dumps([kind, authorization]) + "\n")


def grpc_server(address):
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    def talk(messages, context):
        remember("grpc", dict(context.invocation_metadata()).get("authorization"))
        for message in messages:
            yield b"you said " + message
        context.set_trailing_metadata((("x-said", "all"),))

    class Handler(grpc.GenericRpcHandler):
        def service(self, call):
            return grpc.stream_stream_rpc_method_handler(talk) if call.method == "/test.Echo/Talk" else None

    key, chain = PEM.read_bytes(), PEM.read_bytes()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Handler()])
    server.add_secure_port(f"{address}:443", grpc.ssl_server_credentials([(key, chain)]))
    server.start()
    return server


def web_socket_server(address):
    import websockets

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)

    async def talk(socket, *_):
        remember("web-socket", socket.request_headers.get("Authorization"))
        async for message in socket:
            await socket.send("you said " + message if isinstance(message, str) else message)

    async def serve():
        async with websockets.serve(talk, address, 443, ssl=context):
            ready.set()
            await asyncio.Future()

    ready = threading.Event()
    threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
    ready.wait()


running = []
for pair in sys.argv[3:]:
    what, where = pair.split("=")
    running.append(grpc_server(where) if what == "grpc" else web_socket_server(where))
print("ready", flush=True)
threading.Event().wait()
