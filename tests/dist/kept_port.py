#!/usr/bin/env python3
"""A control port for a job that a test starts, from the system and kept for as long as the job runs: a
socket that does not listen is bound to it, beside which rank 0 can listen (both have SO_REUSEADDR).

    kept_port.py [NAME=]... COMMAND [ARGUMENT...]

runs the command with each NAME, or else MC_MASTER_PORT, set to such a port."""

import os
import socket
import subprocess
import sys


class KeptPort:
    """number: the port. It is kept until close(), or as long as the object lives."""

    def __init__(self):
        both = socket.has_dualstack_ipv6()  # "localhost" may be either
        self.socket = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(("", 0))
        self.number = self.socket.getsockname()[1]

    def close(self):
        self.socket.close()


def main():
    names, command = [], sys.argv[1:]
    while command[0].endswith("="):
        names.append(command.pop(0)[:-1])
    ports = {name: KeptPort() for name in names or ["MC_MASTER_PORT"]}
    numbers = {name: str(port.number) for name, port in ports.items()}
    return subprocess.run(command, env={**os.environ, **numbers}).returncode


if __name__ == "__main__":
    sys.exit(main())
