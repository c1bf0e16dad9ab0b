"""Data that nothing can be learned from, and names and files that are odd, end with one clear line."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.data_images import encoded, make_folder, own_cache, picture
from vitreous import cli
from vitreous.data import host, open_data

__all__ = ["own_cache"]


def no_images(path: Path) -> Path:
    np.savez(path / "x.npz", images=np.zeros((0, 8, 8), np.uint8), labels=np.zeros(0, int))
    return path / "x.npz"


def no_pixels(path: Path) -> Path:
    np.savez(path / "x.npz", images=np.zeros((4, 0, 8), np.uint8), labels=np.arange(4) % 2)
    return path / "x.npz"


def no_rows(path: Path) -> Path:
    columns = {"path": pyarrow.array([], pyarrow.string()), "label": pyarrow.array([], pyarrow.string())}
    pyarrow.parquet.write_table(pyarrow.table(columns), path / "x.parquet")
    return path / "x.parquet"


def no_rows_of_bytes(path: Path) -> Path:
    columns = {"image": pyarrow.array([], pyarrow.binary()), "label": pyarrow.array([], pyarrow.int64())}
    pyarrow.parquet.write_table(pyarrow.table(columns), path / "x.parquet")
    return path / "x.parquet"


def one_class(path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(path / "x.npz", images=pixels, labels=np.zeros(40, int))
    return path / "x.npz"


def all_equal(path: Path) -> Path:
    np.savez(path / "x.npz", images=np.full((40, 8, 8), 9, np.uint8), labels=np.arange(40) % 2)
    return path / "x.npz"


def one_pixel(path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 1), np.uint8)
    np.savez(path / "x.npz", images=pixels, labels=np.arange(40) % 2)
    return path / "x.npz"


def odd_class(path: Path) -> Path:
    for name in (b"a", b"\xff\xfe"):
        folder = os.path.join(os.fsencode(path), b"x", name)
        os.makedirs(folder)
        for number in range(8):
            with open(os.path.join(folder, b"%d.png" % number), "wb") as file:
                file.write(encoded(picture(number + 100 * len(name))))
    return path / "x"


def odd_folder(path: Path) -> Path:
    return make_folder(Path(os.fsdecode(os.fsencode(path) + b"/\xff")), {"a": 8, "b": 8})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (no_images, "has no images"),
        (no_pixels, "have no pixels"),
        (no_rows, "has no images"),
        (no_rows_of_bytes, "has no images"),
        (one_class, "one class"),
        (all_equal, "copies of one"),
        (one_pixel, "images of one pixel"),
        (odd_folder, "its name is not in UTF-8"),
        (odd_class, r"\xff\xfe' is not named in UTF-8"),
    ],
)
def test_what_nothing_can_be_learned_from_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], Path], reason: str
) -> None:
    data = make(tmp_path)
    assert cli.main(["train", str(data), "--epochs", "1", "--out", str(tmp_path / "run")]) == 1
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and reason in line.replace("\\\\", "\\") and "bug" not in line


@pytest.mark.parametrize("make", [one_class, all_equal])
def test_check_says_so_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], Path]
) -> None:
    assert cli.main(["check", str(make(tmp_path))]) == 1
    assert "training could not go on" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(8))
def test_copies_of_one_image_stay_in_training(tmp_path: Path, seed: int) -> None:
    """They fall on one side when a part is held out, which may be any."""
    assert list(open_data(all_equal(tmp_path), seed=seed).splits) == ["train"]


def test_an_empty_split_is_none(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4, 4), np.uint8)
    np.savez(
        tmp_path / "x.npz", x_train=pixels, y_train=np.arange(9) % 2, x_test=pixels[:0], y_test=np.arange(0)
    )
    assert "test" not in open_data(tmp_path / "x.npz", carve=False).splits


def test_a_nul_in_a_path_costs_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path, {"a": 6, "b": 6})
    rows = [f"{name}/{number:03d}.png,{name}\n" for name in "ab" for number in range(6)]
    (tmp_path / "x.csv").write_text("path,label\n" + "".join(rows) + "a/\0.png,a\n")
    assert cli.main(["check", str(tmp_path / "x.csv")]) == 0
    assert "embedded null byte" in capsys.readouterr().err


def test_files_whose_names_are_no_text_are_read_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder(tmp_path / "x", {"a": 12, "b": 12})
    for name in ("a", "b"):
        (root / name / "000.png").rename(os.fsdecode(os.fsencode(root / name) + b"/\xff.png"))
    run = ["train", str(root), "--epochs", "1", "--out", str(tmp_path / "run"), "--workers", "0"]
    assert cli.main(run) == 0, capsys.readouterr().err
    assert "b/\\xff.png" in open_data(root, carve=False).splits["train"].images.names


def test_a_table_that_changed_is_read_again_though_its_time_did_not(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    prints = []
    for shift in (0, 1):
        images = [encoded(picture(seed + shift, (16, 16)), "BMP") for seed in range(300)]
        table = pyarrow.table({"image": images, "label": [seed % 2 for seed in range(300)]})
        pyarrow.parquet.write_table(
            table, path, compression="none", use_dictionary=False, write_statistics=False
        )
        os.utime(path, ns=(10**18, 10**18))
        prints.append((path.stat().st_size, open_data(path).fingerprint))
    assert prints[0][0] == prints[1][0] and prints[0][1] != prints[1][1]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends children with their parent")
def test_a_worker_ends_with_the_process_that_started_it() -> None:
    """The system is asked to, so that a killed run leaves no worker behind."""
    program = (
        "import ctypes, os\n"
        "from vitreous.data import host\n"
        "host._worker_start()(0)\n"
        "asked = ctypes.c_int()\n"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(asked), 0, 0, 0)\n"
        "print(asked.value)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{int(signal.SIGKILL)}\n", done.stderr


def test_a_worker_of_a_thread_may_outlive_it() -> None:
    started: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: started.append(host._worker_start().keywords))  # type: ignore[attr-defined]
    thread.start()
    thread.join()
    assert started == [{"tied": False}]
