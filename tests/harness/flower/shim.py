"""Stand in for a program: the fork server beside it runs it, and this ends as that ends.

Whoever kills this kills that: the server sees the connection close. It is run without any packages.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Send everything that makes a process what it is; return its exit code."""
    told = {"argv": sys.argv, "cwd": os.getcwd(), "environment": dict(os.environ)}
    message = json.dumps(told).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.path.join(os.path.dirname(sys.argv[0]), "socket"))
        socket.send_fds(server, [len(message).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(message)
        code = server.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(main())
