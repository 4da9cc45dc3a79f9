"""The process of one `Shard`: `python -m adloco_p2p.training.shards.worker SOCKET EXCHANGE BYTES`.

It reads from its parent's end of a socket: first a `Setup`, then commands, each a method of `Shard` and its arguments, and
answers each of them. The thread that reads ends the process when the parent is gone, whatever it is computing or waiting for.
"""

import mmap
import os
import queue
import sys
import threading
from multiprocessing.connection import Connection


def main() -> None:
    socket, exchange, size = map(int, sys.argv[1:4])
    connection = Connection(socket)
    commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, commands), name="commands", daemon=True).start()
    memory = mmap.mmap(exchange, size)
    os.close(exchange)

    import torch  # only now does the process end with its parent

    from adloco_p2p import decode
    from adloco_p2p.errors import ConfigError, brief
    from adloco_p2p.training.shards import messages
    from adloco_p2p.training.shards.setup import MAX_SETUP_BYTES, Setup
    from adloco_p2p.training.shards.shard import COMMANDS, Shard

    setup = decode.decode(Setup, commands.get(), max_bytes=MAX_SETUP_BYTES)
    shard = Shard(setup, torch.frombuffer(memory, dtype=torch.float32))
    while True:
        name, arguments = messages.decode(commands.get())
        try:
            answer = messages.encode(messages.DONE, COMMANDS[name](shard, **arguments) or {})
        except ConfigError as error:
            answer = messages.encode(messages.FAILED, {"reason": str(error), "kind": "setting"})
        except (torch.OutOfMemoryError, MemoryError) as error:
            answer = messages.encode(messages.FAILED, {"reason": brief(error) or "out of memory", "kind": "memory"})
        except Exception as error:  # of torch or the model's class; the parent ends the group with it
            answer = messages.encode(messages.FAILED, {"reason": brief(error) or type(error).__name__, "kind": ""})
        connection.send_bytes(answer)


def _read(connection: Connection, commands: "queue.SimpleQueue[bytes]") -> None:
    try:
        while True:
            commands.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)


if __name__ == "__main__":
    main()
