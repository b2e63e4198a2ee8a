"""Become another program, after writing down under which process id.

The file is there before the program is: whoever started it may be killed at any moment, and the
process is still found. It is run as a script and needs nothing but Python.
"""

import os
import sys


def main() -> None:
    """Write the id to the first argument, then become the rest."""
    path, command = sys.argv[1], sys.argv[2:]
    temporary = f"{path}.{os.getpid()}.part"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
