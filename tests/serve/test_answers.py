"""What the server answers: the same as predict, whatever way an image is sent."""

import io
import json
import warnings
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import vitreous
from tests.hostile import pictures
from tests.serve_client import client, post, wait_until_ready
from tests.serving import Running
from vitreous.config import Preprocessing, Resize
from vitreous.data.augment import EvaluationTransform, evaluation_transform
from vitreous.errors import DataError
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet
from vitreous.predict import Classifier
from vitreous.serve.app import create_app
from vitreous.serve.examples import of_data
from vitreous.serve.settings import Settings


def test_raw_and_multipart_answer_as_predict_does(
    server: TestClient, digits: Classifier, files: list[Path]
) -> None:
    expected = digits.predict(files[:3])
    form = server.post("/predict", files=[("image", (path.name, path.read_bytes())) for path in files[:3]])
    answers = form.json()["predictions"]
    assert [answer["file"] for answer in answers] == [path.name for path in files[:3]]
    for answer, own, path in zip(answers, expected, files, strict=False):
        assert (answer["label"], answer["probability"]) == (
            own.label,
            pytest.approx(own.probability, abs=1e-6),
        )
        assert [row["label"] for row in answer["top"]] == [label for label, _ in own.top]
        raw = post(server, path.read_bytes()).json()["predictions"][0]
        assert raw["probability"] == pytest.approx(own.probability, abs=1e-6) and raw["file"] is None
    assert (
        len(post(server, files[0].read_bytes(), path="/predict?top=1").json()["predictions"][0]["top"]) == 1
    )


def test_one_bad_image_fails_alone(server: TestClient, image: bytes) -> None:
    parts = [
        ("image", ("good.png", image)),
        ("image", ("bad.png", b"\x89PNG\r\n\x1a\nbroken")),
        ("image", ("no.txt", b"hello")),
    ]
    answer = server.post("/predict", files=parts)
    assert answer.status_code == 200
    good, bad, text = answer.json()["predictions"]
    assert good["label"] and bad == {"file": "bad.png", "error": "unreadable_image"}
    assert text == {"file": "no.txt", "error": "not_an_image"}
    all_bad = server.post("/predict", files=parts[1:])
    assert all_bad.status_code == 422 and len(all_bad.json()["predictions"]) == 2


def test_parameters_change_how_many_labels_and_nothing_else(server: TestClient, image: bytes) -> None:
    plain, five, one = (post(server, image, path=f"/predict{query}") for query in ("", "?top=5", "?top=1"))
    assert plain.json() == five.json()
    (whole,), (short,) = (answer.json()["predictions"] for answer in (plain, one))
    assert short == {**whole, "top": whole["top"][:1]}


def test_preprocess_returns_what_the_model_sees(
    server: TestClient, digits: Classifier, files: list[Path]
) -> None:
    seen = np.asarray(Image.open(io.BytesIO(post(server, files[0].read_bytes(), path="/preprocess").content)))
    np.testing.assert_array_equal(seen, np.asarray(Image.open(files[0])))


def test_a_model_without_attention_serves_predictions(files: list[Path]) -> None:
    config = ResNetConfig(layers=(1,), stem_width=32, num_classes=3, in_channels=1, image_size=(32, 32))
    transform = evaluation_transform(Preprocessing(image_size=(32, 32), mean=(0.5,), std=(0.5,)), 32)
    with client(Classifier(ResNet(config).eval(), transform, ["a", "b", "c"])) as made:
        wait_until_ready(made)
        assert post(made, files[0].read_bytes()).status_code == 200
        assert made.get("/model").json()["attention"] is None
        assert post(made, files[0].read_bytes(), path="/attention").status_code == 404


def test_calibration_and_abstention_reach_the_answer(digits: Classifier, files: list[Path]) -> None:
    about = {"calibration": {"temperature": 5.0}, "abstain": 0.9}
    cautious = Classifier(digits.model, digits.preprocess, digits.labels, about)
    with client(cautious) as made:
        wait_until_ready(made)
        answer = post(made, files[0].read_bytes()).json()["predictions"][0]
    own = cautious.predict(files[0])[0]
    assert answer["label"] is None and own.label is None
    assert answer["probability"] == pytest.approx(own.probability, abs=1e-6)
    assert own.probability < digits.predict(files[0])[0].probability


def test_an_uploads_name_may_be_of_any_bytes(server: TestClient, files: list[Path]) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="a"; filename="caf\xe9.png"\r\n\r\n'
    body += files[0].read_bytes() + b"\r\n--x--\r\n"
    answer = post(server, body, "multipart/form-data; boundary=x").json()["predictions"][0]
    assert answer["file"] == r"caf\xe9.png" and answer["label"]


def test_a_model_without_classes_shows_its_attention_and_labels_nothing(
    checkpoint: Path, files: list[Path]
) -> None:
    with client(vitreous.load(checkpoint, num_classes=0)) as made:
        wait_until_ready(made)
        for path in ("/predict", "/predict?top=1", "/relevance"):
            answer = post(made, files[0].read_bytes(), path=path)
            assert answer.status_code == 422 and answer.json()["error"] == "no_classes"
        assert post(made, files[0].read_bytes(), path="/attention").status_code == 200


def test_a_figure_that_is_no_number_leaves_the_card_readable(digits: Classifier) -> None:
    about = {"results": {"test": {"loss": float("nan"), "accuracy": 0.5}}, "recipe": {"lr": float("inf")}}
    with client(Classifier(digits.model, digits.preprocess, digits.labels, about)) as made:
        wait_until_ready(made)
        card = json.loads(made.get("/model").text, parse_constant=pytest.fail)
    assert card["about"]["results"] == {"test": {"loss": None, "accuracy": 0.5}}
    assert card["recipe"] == {"lr": None}


@pytest.mark.parametrize("rule", ["cover", "exact", "pad"])
def test_an_upload_is_resized_as_predict_does_it(digits: Classifier, rule: Resize) -> None:
    preprocessing = replace(digits.preprocess.preprocessing, resize=rule)
    changed = Classifier(digits.model, EvaluationTransform(preprocessing, (2, 2)), digits.labels)
    pixels = np.random.default_rng(0).integers(0, 255, (50, 90), np.uint8)
    for form in ("PNG", "JPEG", "BMP"):
        held = io.BytesIO()
        Image.fromarray(pixels).save(held, form)
        with client(changed) as made:
            wait_until_ready(made)
            answer = post(made, held.getvalue()).json()["predictions"][0]
            seen = np.asarray(Image.open(io.BytesIO(post(made, held.getvalue(), path="/preprocess").content)))
        np.testing.assert_array_equal(seen, changed.prepare(held.getvalue()).pixels[..., 0])
        own = changed.predict(held.getvalue())[0]
        assert answer["label"] == own.label
        assert answer["probability"] == pytest.approx(own.probability, abs=1e-5)


def test_answers_agree_with_a_loaded_checkpoint(
    process: Running, checkpoint: Path, files: list[Path]
) -> None:
    own = vitreous.load(checkpoint).predict(files)
    for path, prediction in zip(files, own, strict=True):
        answer = httpx.post(
            f"{process.url}/predict", content=path.read_bytes(), headers={"Content-Type": "image/png"}
        )
        assert answer.json()["predictions"][0]["label"] == prediction.label
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert httpx.get(f"{process.url}/model").json()["labels"] == [str(digit) for digit in range(10)]


def test_the_card_tells_no_paths(digits: Classifier) -> None:
    about = {
        "results": {"test": {"accuracy": 0.9}},
        "recipe": {"epochs": 3, "out": "/home/me"},
        "data": "/home/me",
    }
    classifier = Classifier(digits.model, digits.preprocess, digits.labels, about)
    with client(classifier) as made:
        card = made.get("/model")
    assert card.json()["about"]["results"]["test"]["accuracy"] == 0.9
    assert card.json()["recipe"] == {"epochs": 3} and "/home" not in card.text


def test_the_card_tells_of_a_calibration(digits: Classifier) -> None:
    """With the figures before and after it: the results that training sealed are from before."""
    changes = {"before": {"loss": 0.5, "ece": 0.1}, "after": {"loss": 0.25, "ece": 0.02}}
    record = {"temperature": 2.5, "images": 180, "measured": 359, "split": "test", **changes}
    for found, said in (
        (record, "divided by 2.5, fitted on 180 val images. On 359 test images, which had no part in it: "),
        (record, "calibration error 10.00 % → 2.00 %, loss 0.5000 → 0.2500."),
        ({"temperature": 2.5}, "divided by 2.5."),
        ({"temperature": 2.5, "after": 3}, ""),  # what another program wrote
        (None, ""),
    ):
        about = {"results": {"test": {"loss": 0.5}}} | ({"calibration": found} if found else {})
        with client(Classifier(digits.model, digits.preprocess, digits.labels, about)) as made:
            told = made.get("/model").json()["calibration"]
        assert said in told and bool(said) == bool(told)


def test_a_path_or_method_that_is_not_there(digits: Classifier) -> None:
    with client(digits) as made:
        for method, path, status, word in (
            ("GET", "/nothing", 404, "not_found"),
            ("DELETE", "/predict", 405, "method_not_allowed"),
        ):
            answer = made.request(method, path)
            assert (answer.status_code, answer.json()["error"]) == (status, word)


def test_metrics_count_what_happened(digits: Classifier, image: bytes) -> None:
    with client(digits) as made:
        wait_until_ready(made)
        post(made, image)
        post(made, b"text")
        made.get("/nothing/like/this")
        text = made.get("/metrics").text
    assert 'vitreous_requests_total{route="/predict",status="200"} 1.0' in text
    assert 'vitreous_requests_total{route="/predict",status="415"} 1.0' in text
    assert 'vitreous_requests_total{route="other",status="404"} 1.0' in text
    assert 'vitreous_images_total{outcome="answered"} 1.0' in text
    assert "vitreous_images_inside 0.0" in text and "vitreous_ready 1.0" in text


def test_examples_are_the_models_own(digits: Classifier, image: bytes) -> None:
    """Names of classes are anybody's text: they come back as they are, and lead nowhere else."""
    entries = [
        {"label": label, "image": b64encode(image).decode()} for label in ("a/../b?", "<i>", "x" * 500)
    ]
    own = replace(digits, about={"examples": [*entries, {"label": "no picture", "image": "aGVsbG8="}]})
    with client(own) as made:
        names = made.get("/examples").json()
        assert names == ["1-a/../b?.png", "2-<i>.png", f"3-{'x' * 60}.png"]
        for name in names:
            answer = made.get(f"/examples/{quote(name, safe='')}")
            assert (answer.content, answer.headers["Content-Type"]) == (image, "image/png")
        assert made.get("/examples/4-no picture.png").status_code == 404
        assert "examples" not in made.get("/model").json()["about"]


def test_examples_are_of_the_data_that_is_named(digits: Classifier, image: bytes, tmp_path: Path) -> None:
    """Its test part, each class in turn, before those that were sealed with the model; of a size to show."""
    for part, label, side in (("train", "cat", 50), ("test", "cat", 900), ("test", "dog", 40)):
        folder = tmp_path / "data" / part / label
        folder.mkdir(parents=True)
        for number in range(2):
            pictures.noise((side, side // 2), seed=number).convert("L").save(folder / f"{number}.png")
    (tmp_path / "data" / "train" / "dog").mkdir()
    shown = of_data(str(tmp_path / "data"), digits)
    assert list(shown) == ["1-cat.jpeg", "2-dog.jpeg", "3-cat.jpeg", "4-dog.jpeg"]
    sizes = [Image.open(io.BytesIO(data)).size for _, data in shown.values()]
    assert sizes == [(640, 320), (40, 20), (640, 320), (40, 20)]
    own = replace(digits, about={"examples": [{"label": "own", "image": b64encode(image).decode()}]})
    app = create_app(own, "digits", Settings(hosts=("testserver",)), shown=shown)
    with TestClient(app) as made:
        assert made.get("/examples").json() == list(shown)
        answer = made.get("/examples/2-dog.jpeg")
        assert (answer.content, answer.headers["Content-Type"]) == (shown["2-dog.jpeg"][1], "image/jpeg")
    for path in (tmp_path / "data" / "test").rglob("*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="no image of it can be read"):
        of_data(str(tmp_path / "data"), digits)
