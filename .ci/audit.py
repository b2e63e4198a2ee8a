"""Ask pip-audit for known vulnerabilities of what `constraints*.txt` pin.

Exit code 1 if there is one. Where its database cannot be reached, a line says so and all is well.
"""

from __future__ import annotations

import json
import subprocess
import sys

FILES = ("constraints.txt", "constraints-torch.txt", "constraints-dev.txt")


def main() -> None:
    """Print each vulnerability and what was audited."""
    command = ["pip-audit", "--disable-pip", "--require-hashes", "--format=json"]
    command += ["--progress-spinner=off", *(f"--requirement={name}" for name in FILES)]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        packages = []
    audited = [package for package in packages if "vulns" in package]
    vulnerable = [package for package in audited if package["vulns"]]
    for package in vulnerable:
        for each in package["vulns"]:
            fixed = ", ".join(each["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}")
    if audited:
        print(f"audit: {len(audited)} of {len(packages)} packages, {len(vulnerable)} vulnerable")
    else:
        reasons = [package["skip_reason"] for package in packages] or done.stderr.splitlines()
        reason = reasons[-1] if reasons else f"exit code {done.returncode}"
        print(f"audit: NOTHING was audited, no vulnerability database answers here ({reason})")
    sys.exit(1 if vulnerable else 0)


if __name__ == "__main__":
    main()
