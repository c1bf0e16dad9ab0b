"""LitServe with a vitreous model, as its manual says: the peer of `benchmarks/serve.py`, which starts it."""

import json
import sys
from typing import Any

import litserve
import torch
from starlette.requests import Request

from vitreous.predict import load


class Api(litserve.LitAPI):
    """The same reading, model and answer as vitreous serves."""

    def __init__(self, checkpoint: str, **batching: Any) -> None:
        super().__init__(**batching)
        self.checkpoint = checkpoint

    def setup(self, device: str) -> None:
        """Load the model in the worker."""
        self.classifier = load(self.checkpoint)

    def decode_request(self, request: Request) -> torch.Tensor:
        """Read the form's image."""
        return self.classifier.read(request["image"].file.read())  # type: ignore[index]

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Make a batch."""
        return torch.stack(inputs)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Compute."""
        return self.classifier.probabilities(x if x.ndim == 4 else x[None])

    def unbatch(self, output: torch.Tensor) -> list[torch.Tensor]:
        """Take a batch apart."""
        return list(output)

    def encode_response(self, output: torch.Tensor) -> dict[str, Any]:
        """Name the classes."""
        return {"predictions": [self.classifier.name(output.reshape(1, -1), [None])[0].to_dict()]}


if __name__ == "__main__":
    checkpoint, port, deadline, options = (
        sys.argv[1],
        int(sys.argv[2]),
        float(sys.argv[3]),
        json.loads(sys.argv[4]),
    )
    fast = options.pop("fast_queue", False)
    server = litserve.LitServer(
        Api(checkpoint, **options), accelerator="cpu", timeout=deadline, fast_queue=fast
    )
    server.run(port=port, host="127.0.0.1", log_level="warning", generate_client_file=False)
