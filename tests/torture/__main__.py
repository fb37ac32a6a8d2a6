"""Run the torture tools one after another: `python -m tests.torture --minutes 10 --seed 0`, a third of it each."""

import argparse
import subprocess
import sys

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of all tools together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    codes = []
    for tool in ("kill", "crash", "damage"):
        options = ["--minutes", str(arguments.minutes / 3), "--seed", str(arguments.seed)]
        codes.append(subprocess.run([sys.executable, "-m", f"tests.torture.{tool}", *options]).returncode)
    sys.exit(max(codes))
