"""A script that writes its process id to a file and then becomes another program.

What that program and its children make is for their account alone: databases, logs, apps' files.

The file exists before the program runs, so the process is found even if its starter was killed
meanwhile. It needs nothing but Python.
"""

import os
import sys


def main() -> None:
    """Write the process id to the file of the first argument, then run the rest."""
    path, command = sys.argv[1], sys.argv[2:]
    os.umask(0o077)
    temporary = f"{path}.{os.getpid()}.part"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
