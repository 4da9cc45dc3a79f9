"""Small programs that measure a link from inside a laboratory; standard library only, so that they start quickly.

python -m benchmarks.wan.probes echo PORT                           answer datagrams for ever
python -m benchmarks.wan.probes ping ADDRESS PORT COUNT SECONDS     send datagrams at an interval
python -m benchmarks.wan.probes sink PORT                           swallow TCP connections for ever
python -m benchmarks.wan.probes stream ADDRESS PORT SECONDS FLOWS   fill TCP connections; the rate is what the sink has read

`stream` begins to count after a third of its time: slow start is not what it measures.
"""

import json
import socket
import struct
import sys
import threading
import time

LAST_ANSWER_SECONDS = 0.5
TELL_SECONDS = 0.05
MBIT = 125_000


def echo(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("", port))
        print("ready", flush=True)
        while True:
            server.sendto(*server.recvfrom(2048))


def ping(address: str, port: int, count: int, interval_seconds: float) -> None:
    rtts: dict[int, float] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((address, port))
        client.settimeout(LAST_ANSWER_SECONDS)

        def listen() -> None:
            try:
                while len(rtts) < count:
                    number, sent = struct.unpack("!qd", client.recv(2048))
                    rtts[number] = time.monotonic() - sent
            except TimeoutError:
                return  # whatever comes now counts as lost

        listener = threading.Thread(target=listen)
        listener.start()
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun + number * interval_seconds - time.monotonic()))
            client.send(struct.pack("!qd", number, time.monotonic()))
        listener.join()
    print(json.dumps({"answered": sorted(rtts), "rtt_seconds": list(rtts.values())}))


def sink(port: int) -> None:
    """Swallow TCP connections, and report to each now and then how many bytes have come."""
    with socket.create_server(("", port), backlog=64) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_swallow, args=(connection,), daemon=True).start()


def _swallow(connection: socket.socket) -> None:
    buffer, total = bytearray(1 << 18), 0
    with connection:
        told = time.monotonic()
        try:
            while count := connection.recv_into(buffer):
                total += count
                if (now := time.monotonic()) - told > TELL_SECONDS:
                    connection.send(struct.pack("!dq", now, total))
                    told = now
        except (ConnectionResetError, BrokenPipeError):
            return  # the sender has measured enough


def stream(address: str, port: int, seconds: float, flows: int) -> None:
    rates: list[float] = []
    threads = [threading.Thread(target=_fill, args=(address, port, seconds, rates)) for _ in range(flows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"mbit": sum(rates)}))


def _fill(address: str, port: int, seconds: float, rates: list[float]) -> None:
    data = bytes(1 << 17)
    heard: list[tuple[float, int]] = []
    with socket.create_connection((address, port)) as connection:

        def listen() -> None:
            while record := connection.recv(16, socket.MSG_WAITALL):
                heard.append(struct.unpack("!dq", record))

        listener = threading.Thread(target=listen)
        listener.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.send(data)
        connection.shutdown(socket.SHUT_RDWR)  # what is still queued here does not matter
        listener.join()
        counted = [record for record in heard if record[0] >= end - seconds * 2 / 3]  # one clock, on one machine
    (first, before), (last, after) = counted[0], counted[-1]
    rates.append((after - before) / (last - first) / MBIT)


def main() -> None:
    match sys.argv[1:]:
        case ["echo", port]:
            echo(int(port))
        case ["ping", address, port, count, interval]:
            ping(address, int(port), int(count), float(interval))
        case ["sink", port]:
            sink(int(port))
        case ["stream", address, port, seconds, flows]:
            stream(address, int(port), float(seconds), int(flows))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
