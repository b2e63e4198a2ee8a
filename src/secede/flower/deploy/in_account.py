"""A script that takes on another account, for good, and then becomes another program.

It needs nothing but Python, and to be started by root.
"""

import os
import sys


def main() -> None:
    """Run the command from the fourth argument on as USER and GROUP, in FOLDER."""
    user, group, folder, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    if user <= 0 or group <= 0:
        sys.exit(f"error: account {user}:{group} is root's: expected another one")
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    os.umask(0o077)
    os.chdir(folder)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
