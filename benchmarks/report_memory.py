"""Peak memory and time of ``spectune report`` over very many requests.

    python benchmarks/report_memory.py docs/data/draft-length --requests 300000

The requests of a real study are repeated, each trial's as often as it takes, one after the other in time; every answer
is another one, so none is shared. The report is made by a process of its own, whose peak is read.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def repeated(study: Path, target: Path, wanted: int) -> int:
    """Copies ``study`` with about ``wanted`` requests; how many they are."""
    shutil.copytree(study, target)
    files = sorted(target.glob("trials/*/requests.jsonl"))
    sizes = [len(file.read_text(encoding="utf-8").splitlines()) for file in files]
    times = max(1, round(wanted / sum(sizes)))
    for file in files:
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        span_s = max(r["start_s"] + (r["latency_s"] or 0.0) for r in records) + 1.0
        with file.open("w", encoding="utf-8") as out:
            for number in range(times):
                for record in records:
                    new = {
                        "start_s": record["start_s"] + number * span_s,
                        "text": f"{record['text']} {number}",
                    }
                    out.write(json.dumps({**record, **new}, ensure_ascii=False) + "\n")
        trial = file.with_name("trial.json")
        body = json.loads(trial.read_text(encoding="utf-8"))
        for load in body["loads"]:
            load["num_requests"] *= times
        trial.write_text(json.dumps(body), encoding="utf-8")
    return times * sum(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="a study with results")
    parser.add_argument("--requests", type=int, default=300_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="report-memory-") as folder:
        number = repeated(options.study, Path(folder) / "study", options.requests)
        began = time.monotonic()
        command = [sys.executable, "-m", "spectune", "report", str(Path(folder) / "study")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{number} requests: {peak_mib:.0f} MiB, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
