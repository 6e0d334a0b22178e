"""Two processes append trials to one study at once, over an S3-compatible server and in a shared folder.

Every trial is a record of its own with a text that says who wrote it and which it was. At the end the study is read
as any command reads it, and compared with what the writers were told to write: none lost, none twice, no number
given twice. With ``--kills`` the second writer is killed with SIGKILL so often, at random moments, and started again
to go on behind what it had finished; what was finished must be there once all the same.

    python benchmarks/shared_record.py                   # 1,000 records in each place
    python benchmarks/shared_record.py --kills 5 --place s3
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from appending import append_trials, finished_by
from exchange_studies import drawn
from s3_server import BUCKET, s3_server

from spectune.store.opening import create_study, open_study

SPAWN = multiprocessing.get_context("spawn")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1000, help="in all (default: %(default)s)")
    parser.add_argument("--place", choices=("s3", "folder", "both"), default="both")
    parser.add_argument("--kills", type=int, default=0, help="of the second writer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPECTUNE_HOME"] = f"{folder}/home"
        for kind in ("folder", "s3") if options.place == "both" else (options.place,):
            with s3_server() if kind == "s3" else nullcontext() as server:
                if server is not None:
                    os.environ.update(server.environment)
                place = f"s3://{BUCKET}/team/study" if kind == "s3" else f"{folder}/study"
                results.append({"place": kind, **_measure(place, Path(folder), options)})
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        for result in results:
            print(", ".join(f"{name} {value}" for name, value in result.items()))
    return 0 if all(_is_right(result) for result in results) else 1


def _is_right(result: dict[str, Any]) -> bool:
    return not any(result[name] for name in ("lost", "twice", "strange", "numbers given twice"))


def _measure(place: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    create_study(place, study=drawn(random.Random(1)).study, source="question: who wrote what?\n")
    each = options.records // 2
    gate = SPAWN.Barrier(3)
    began = time.monotonic()
    first = SPAWN.Process(target=append_trials, args=(place, folder / "copy-a", "a", each, gate))
    first.start()
    kills = _write_and_die(place, folder / "copy-b", each, gate, options)
    first.join()
    took_s = time.monotonic() - began
    trials = open_study(place).read_trials()
    found = Counter(r.text for t in trials for load in t.loads for r in load.requests)
    wanted = {f"answer {i} of {name}" for name in "ab" for i in range(each)}
    return {
        "records": sum(found.values()),
        "lost": len(wanted - found.keys()),
        "twice": sum(n > 1 for n in found.values()),
        "strange": len(found.keys() - wanted),
        "numbers given twice": len(trials) - len({t.number for t in trials}),
        "kills": kills,
        "seconds": round(took_s, 1),
    }


def _write_and_die(place: str, copy: Path, each: int, gate: Any, options: argparse.Namespace) -> int:
    """The second writer, killed and started again; it goes on behind the last trial that it finished."""
    draw, kills = random.Random(options.seed), 0
    while True:
        done = finished_by(place, copy, "b") if kills else 0
        arguments = (place, copy, "b", each, gate if kills == 0 else None, done)
        writer = SPAWN.Process(target=append_trials, args=arguments)
        writer.start()
        if kills == 0:
            gate.wait(300)
        writer.join(None if kills >= options.kills else draw.uniform(3, 12))
        if writer.exitcode is not None:
            return kills
        writer.kill()
        writer.join()
        kills += 1


if __name__ == "__main__":
    raise SystemExit(main())
