"""Change one line of the code at a time and see whether a test notices: `make mutants N=40`.

Each mutant is made in a temporary copy, so that the tree is never touched, and is judged by the tests of its
module alone. What no test can see is left out: texts, types, GPUs, and packages that are not installed.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import sklearn.datasets  # noqa: F401  (imported once for all mutants)
import torch
import torchvision.transforms.v2  # noqa: F401

ROOT = Path(__file__).parents[1]
COPIED = ("vitreous", "tests", "docs", "pyproject.toml", "README.md", "CHANGELOG.md")
TESTS = {
    "training/assembly": [
        f"training/test_{name}" for name in ("loop", "finetune", "memory", "capture", "ranks")
    ],
    "training/budget": ["training/test_budget"],
    "training/card": ["training/test_results", "training/test_loop"],
    "training/checkpoints": [f"training/test_checkpoint{name}" for name in ("s", "_faults", "_ranks")],
    "training/clock": ["training/test_budget"],
    "training/facts": ["training/test_defaults"],
    "training/sizing": [f"training/test_{name}" for name in ("defaults", "recipes", "finetune")],
    "training/defaults": [f"training/test_{name}" for name in ("defaults", "recipes", "finetune", "setup")],
    "training/finetune": ["training/test_recipes", "training/test_finetune"],
    "training/folder": [f"training/test_{name}" for name in ("folder", "earlier_versions", "options")],
    "training/gradients": [f"training/test_{name}" for name in ("memory", "meaning", "loop", "ranks")],
    "training/head": ["training/test_head"],
    "training/initial": ["training/test_initial"],
    "training/journal": ["training/test_journal", "training/test_refusal"],
    "training/loaders": [f"training/test_{name}" for name in ("loaders", "results", "meaning", "loop")],
    "training/log": ["training/test_log", "training/test_loop", "training/test_refusal", "test_data_memory"],
    "training/loop": [
        *(f"training/test_{name}" for name in ("loop", "average", "refusal", "meaning", "results")),
        *(f"training/test_{name}" for name in ("budget", "folder", "lag", "signals", "kills", "ranks")),
    ],
    "training/plan": ["training/test_defaults", "training/test_recipes"],
    "training/pretrain": ["training/test_pretrain"],
    "training/recipes": [f"training/test_{name}" for name in ("defaults", "recipes", "finetune")],
    "training/refusal": ["training/test_refusal", "training/test_lag"],
    "training/resume": [
        f"training/test_{name}" for name in ("loop", "kills", "extension", "budget", "folder")
    ],
    "training/results": [f"training/test_{name}" for name in ("results", "loop", "average")],
    "training/run": [f"training/test_{name}" for name in ("loop", "folder", "extension", "results", "ranks")],
    "training/setup": [
        *(f"training/test_{name}" for name in ("setup", "earlier_versions", "folder", "loop", "results")),
        "training/test_options",
        "test_patch_drop",
    ],
    "training/signals": ["training/test_signals"],
    "training/state": [f"training/test_{name}" for name in ("lag", "average", "loop", "kills", "refusal")],
    "training/step": [f"training/test_{name}" for name in ("lag", "loop", "meaning", "refusal")],
    "training/transfer": ["training/test_initial"],
    "training/watch": ["training/test_pretrain"],
    "training/tuning": ["training/test_tuning"],
    "objectives/__init__": ["training/test_results", "test_objectives"],
    **{
        f"objectives/{name}": ["test_pretraining", "training/test_pretrain"]
        for name in ("masked", "mae", "dino", "patches", "unlabelled")
    },
    "objectives/painting": ["training/test_painting", "test_pretraining"],
    "objectives/supervised": ["test_objectives", "training/test_results", "training/test_meaning"],
    "evals/answers": ["evals/test_answers", "evals/test_accuracy"],
    "evals/accuracy": ["evals/test_accuracy", "evals/test_answers"],
    "evals/multilabel": ["evals/test_multilabel"],
    "evals/calibration": ["evals/test_calibration"],
    "evals/health": ["evals/test_health", "training/test_pretrain"],
    **{
        f"evaluate/{name}": ["test_evaluate", "test_calibrate"] for name in ("__init__", "measuring", "table")
    },
    **{f"evaluate/{name}": ["test_calibrate"] for name in ("calibrating", "card")},
    "evaluate/conditions": ["test_evaluate"],
    "parallel/threads": ["training/test_threads"],
    "report/folder": ["test_report_folder"],
    "evals/mean_loss": ["evals/test_answers", "training/test_results"],
    "data/order": ["test_data_order", "training/test_meaning", "test_data_loader"],
    "data/mix": [
        *(f"test_data_{name}" for name in ("settings", "variation", "operations", "loader_arrays", "device")),
    ],
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.And: ast.Or, ast.Or: ast.And},
}
SPOKEN = ("note", "warn", "fail", "bar", "console", "filterwarnings", "_quiet", "show")
SILENT = ("strict", "repr")  # what zip and dataclasses do about mistakes and texts
UNSEEN = ("cuda", "mps", "LAG", "self.lag", "Wandb", "Mlflow", "TensorBoard", "memory", "utilization")


class Mutant(NamedTuple):
    """One change of a module's text."""

    module: str
    line: int
    before: str
    after: str
    text: str


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node could be by mistake."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        yield ast.Compare(node.left, [SWAPS[type(node.ops[0])]()], node.comparators)  # type: ignore[list-item]
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)  # type: ignore[arg-type]
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPS[type(node.op)](), node.values)  # type: ignore[arg-type]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)


def visible(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose change a user could notice; not texts, types, errors' words or decorators."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.keyword) and node.arg in SILENT:
        return
    if isinstance(node, ast.Expr | ast.Call):
        called = node.value if isinstance(node, ast.Expr) else node
        words = ast.unparse(called.func).split(".") if isinstance(called, ast.Call) else ()
        if any(word in SPOKEN for word in words):
            return
    if isinstance(node, ast.ClassDef | ast.FunctionDef) and any(word in node.name for word in UNSEEN):
        return
    yield node
    skipped = {"annotation", "returns", "decorator_list", "ops", "op", "ctx"}
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "round":
        skipped.add("args")
    for name, value in ast.iter_fields(node):
        if name not in skipped:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visible(child)


def mutants(module: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    text = (ROOT / "vitreous" / f"{module}.py").read_text()
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    for node in visible(ast.parse(text)):
        for other in changes(node):
            assert (
                isinstance(node, ast.expr | ast.stmt) and node.end_lineno and node.end_col_offset is not None
            )
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[node.end_lineno - 1] + node.end_col_offset
            before, after = data[first:last].decode(), ast.unparse(ast.fix_missing_locations(other))
            if any(word in lines[node.lineno - 1] for word in UNSEEN):
                continue
            if isinstance(other, ast.expr) and not isinstance(other, ast.Constant):
                after = f"({after})"
            yield Mutant(
                module, node.lineno, before, after, (data[:first] + after.encode() + data[last:]).decode()
            )


def passes(copy: Path, module: str, limit: float, quick: bool = False) -> bool:
    """Tell whether the module's tests pass in the copy: the quick ones first, or alone."""
    kinds = ("not slow",) if quick else ("not slow", "slow")
    files = [f"tests/{name}.py" for name in TESTS[module]]
    assert all((copy / file).exists() for file in files), f"tests of {module} have moved: {files}"
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-m"]
    return all(_run([*options, kind, *files], copy, limit) in (0, 5) for kind in kinds)


def _run(arguments: list[str], copy: Path, limit: float) -> int:
    """Return pytest's exit status (5: no such tests); in a fork, which has imported torch already."""
    child = os.fork()
    if child == 0:
        os.setsid()  # what it starts ends with it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silent, stream)
        os.chdir(copy)
        sys.path[:0] = [str(copy)]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]  # those of the copy are meant
        os._exit(int(pytest.main(arguments)))
    until = time.monotonic() + limit
    try:
        while time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return 1
    finally:  # also when this process is told to stop: a mutant may loop for ever
        if child:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def main() -> None:
    """Judge a sample of mutants; print those that no test noticed, and the share of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=150, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--limit", type=float, default=300.0, help="least seconds for one mutant's tests")
    parser.add_argument("--quick", action="store_true", help="leave the slow tests out: more may survive")
    parser.add_argument("--trust", action="store_true", help="don't run the tests without a mutant first")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    found = [mutant for module in TESTS if options.only in module for mutant in mutants(module)]
    sample = random.Random(options.seed).sample(found, min(options.n, len(found)))
    survivors: list[Mutant] = []
    limits: dict[str, float] = {}  # a mutant that hangs is noticed; slow tests alone are no sign of one
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Path(place)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        for number, mutant in enumerate(sample, start=1):
            path = copy / "vitreous" / f"{mutant.module}.py"
            if mutant.module not in limits and not options.trust:
                started = time.monotonic()
                if not passes(copy, mutant.module, 10 * options.limit, options.quick):
                    raise SystemExit(f"the tests of {mutant.module} fail without a mutant: mend them first")
                limits[mutant.module] = max(options.limit, 3 * (time.monotonic() - started))
            original, started = path.read_text(), time.monotonic()
            path.write_text(mutant.text)
            limit = limits.get(mutant.module, options.limit)
            survived = passes(copy, mutant.module, limit, options.quick)
            path.write_text(original)
            survivors += [mutant] * survived
            verdict = "SURVIVED" if survived else "killed"
            said = f"{number:>4} {verdict:<9} {time.monotonic() - started:4.0f} s  {_shown(mutant)}"
            sys.stdout.write(said + "\n")
            sys.stdout.flush()
    killed = len(sample) - len(survivors)
    sys.stdout.write(
        f"\n{killed} of {len(sample)} killed ({killed / len(sample):.1%}), of {len(found)} known\n"
    )
    for mutant in survivors:
        sys.stdout.write(f"  {_shown(mutant)}\n")


def _shown(mutant: Mutant) -> str:
    before, after = (" ".join(text.split())[:60] for text in (mutant.before, mutant.after))
    return f"vitreous/{mutant.module}.py:{mutant.line}: {before} -> {after}"


if __name__ == "__main__":
    main()
