"""Known security holes of the packages that are tested together: one question to the OSV database.

    python scripts/known_holes.py [constraints.txt]

Exit status 1 where a package has one that is not accepted below. Without an answer nothing is known, which is told
and fails nothing: this runs on machines without a network as well.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path

ADDRESS = "https://api.osv.dev/v1/querybatch"
ACCEPTED: dict[str, str] = {}  # id of a hole: why it does not concern this package
_PIN = re.compile(r"^\s*([A-Za-z0-9._-]+)==([^\s;#]+)", re.MULTILINE)


def main(arguments: list[str], address: str = ADDRESS) -> int:
    """Ask about every pinned package and print the holes."""
    path = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "constraints.txt"
    pins = [(name, version.partition("+")[0]) for name, version in _PIN.findall(path.read_text())]
    question = {"queries": [{"package": {"name": n, "ecosystem": "PyPI"}, "version": v} for n, v in pins]}
    request = urllib.request.Request(address, json.dumps(question).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            answers = json.load(response)["results"]
    except (OSError, ValueError, KeyError) as error:
        print(f"known holes were not checked: no answer from {address} ({error})")
        return 0
    found = [
        f"{name} {version}: https://osv.dev/vulnerability/{hole['id']}"
        for (name, version), answer in zip(pins, answers, strict=True)
        for hole in answer.get("vulns") or []
        if hole["id"] not in ACCEPTED
    ]
    print("\n".join([*found, f"{len(pins)} packages, {len(found)} known holes"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
