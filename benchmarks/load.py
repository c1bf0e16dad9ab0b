"""Loading ViT-B/16 from disk: vitreous beside timm and transformers, each in a fresh process, in one run.

    .venv/bin/python benchmarks/load.py

Time is from the call to a model ready to compute, imports aside; memory is the peak above the imports.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from vitreous import console

REPEATS = 5
LOADERS = {
    "vitreous, sealed and verified": (
        "from vitreous.predict import load",
        "load(folder / 'sealed.safetensors')",
    ),
    "vitreous, sealed, verify=False": (
        "from vitreous.predict import load",
        "load(folder / 'sealed.safetensors', verify=False)",
    ),
    "vitreous, from timm's folder": ("from vitreous.predict import load", "load(folder / 'timm')"),
    "vitreous, from Hugging Face's": ("from vitreous.predict import load", "load(folder / 'hf')"),
    "timm": ("import timm", "timm.create_model(f'local-dir:{folder}/timm', pretrained=True)"),
    "transformers": (
        "from transformers import ViTForImageClassification as V; "
        "import transformers; transformers.utils.logging.disable_progress_bar()",
        "V.from_pretrained(folder / 'hf')",
    ),
}
PROGRAM = """
import json, sys, threading, time
from pathlib import Path
import psutil, torch
{imports}
folder, here, peak, done = Path(sys.argv[1]), psutil.Process(), [0], threading.Event()
def watch():
    while not done.wait(0.001):
        peak[0] = max(peak[0], here.memory_info().rss)
before = here.memory_info().rss
watcher = threading.Thread(target=watch); watcher.start()
start = time.perf_counter()
model = {call}
seconds = time.perf_counter() - start
done.set(); watcher.join()
print(json.dumps([seconds, max(peak[0], here.memory_info().rss) - before]))
"""


def main() -> None:
    """Measure every loader, and print one table."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = _prepare(folder)
        for loader, (imports, call) in LOADERS.items():
            program = PROGRAM.format(imports=imports, call=call)
            runs = [_run(program, folder) for _ in range(REPEATS)]
            seconds, memory = (sorted(run[i] for run in runs)[REPEATS // 2] for i in (0, 1))
            rows.append([loader, seconds, memory / size])
    by_name = {row[0]: row[1] for row in rows}
    for row in rows:
        row.append(by_name["timm"] / row[1])
    console.table(["loader", "seconds", "peak memory / file", "times timm's speed"], rows)


def _prepare(folder: Path) -> int:
    import torch

    from vitreous.config import Preprocessing
    from vitreous.data.augment import evaluation_transform
    from vitreous.models.zoo import create_model
    from vitreous.predict import Classifier

    model = create_model("ViT-B/16")
    with torch.no_grad():
        model.head.weight.normal_()  # type: ignore[union-attr]
    names = [f"class {row}" for row in range(1000)]
    classifier = Classifier(model, evaluation_transform(Preprocessing(resize="exact")), names)
    classifier.save(folder / "timm", layout="timm")
    classifier.save(folder / "hf", layout="hf")
    return classifier.save(folder / "sealed.safetensors").stat().st_size


def _run(program: str, folder: Path) -> tuple[float, float]:
    command = [sys.executable, "-c", program, str(folder)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, memory = json.loads(output.splitlines()[-1])
    return seconds, memory


if __name__ == "__main__":
    main()
