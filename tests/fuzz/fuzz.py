"""Coverage-guided fuzzing with atheris, in plain Python, so that it sees every line of the data path.

    python -m tests.fuzz.fuzz --seconds 60 [TARGET ...]      # all targets, so long each

Each target starts from its corpus. Inputs that reach new places go to `.fuzz/found`, from where minimise.py takes what
is worth keeping; one that breaks its target goes to `.fuzz/broken`, with the command that replays it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.replay import CORPUS, TARGETS, check_of

ROOT = Path(__file__).parent.parent.parent
WORK = ROOT / ".fuzz"
INPUT_BYTES_MAX = 2048
INPUT_SECONDS_MAX = 20
"""An input that takes longer is a finding: plain Python under a fuzzer is slow, but not that slow."""
INSTRUMENTED = ["netreduce", "dpkt"]


def serve(target: str, arguments: list[str]) -> None:
    """Be the fuzzer of one target; never returns."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        check = check_of(target)
    atheris.Setup([__file__, *arguments], check)
    atheris.Fuzz()


def _child(target: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fuzz.fuzz", "--serve", target, *arguments]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONHASHSEED": "0"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def fuzz(target: str, seconds: int, seed: int) -> bool:
    """Fuzz one target; whether nothing broke. Prints a line of figures."""
    found, broken = WORK / "found" / target, WORK / "broken" / target
    for folder in (found, broken, CORPUS / target):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(broken.iterdir())
    options = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", f"-timeout={INPUT_SECONDS_MAX}"]
    options += [f"-artifact_prefix={broken}/", f"-seed={seed}", "-print_final_stats=1", "-rss_limit_mb=4096"]
    dictionary = CORPUS.parent / "dictionaries" / target
    if dictionary.exists():
        options.append(f"-dict={dictionary}")
    child = _child(target, *options, str(found), str(CORPUS / target))
    log = child.communicate()[1]
    (WORK / f"{target}.log").write_text(log)
    runs = re.findall(r"stat::number_of_executed_units: *(\d+)", log) or ["0"]
    covered = re.findall(r"cov: (\d+)", log) or ["0"]
    print(f"{target:10} {int(runs[-1]):>10,} inputs in {seconds} s, {covered[-1]} places, seed {seed}", flush=True)
    findings = sorted(set(broken.iterdir()) - before)
    if child.returncode == 0 and not findings:
        return True
    print("\n".join(log.splitlines()[-40:]))
    for path in findings:
        print(f"replay with: NUMBA_DISABLE_JIT=1 python -m tests.fuzz.replay {target} {path.relative_to(ROOT)}")
    return False


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="how long to fuzz each target")
    parser.add_argument("--seed", type=int, default=None, help="of the fuzzer; by default a fresh one")
    options = parser.parse_args()
    unknown = sorted(set(options.targets) - set(TARGETS))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    seed = int.from_bytes(os.urandom(4), "big") if options.seed is None else options.seed
    held = [fuzz(target, options.seconds, seed) for target in options.targets]
    sys.exit(not all(held))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3:])
    else:
        main()
