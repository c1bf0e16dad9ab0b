"""A server whose model takes a known time for each image: `slow_server.py CKPT SECONDS [flags of serve]`."""

import sys
import time

import torch

from vitreous.cli import main
from vitreous.predict import Classifier

seconds = float(sys.argv[2])
original = Classifier.probabilities


def probabilities(self: Classifier, images: torch.Tensor, mask: None) -> torch.Tensor:
    time.sleep(seconds * len(images))
    return original(self, images, mask)


Classifier.probabilities = probabilities
sys.exit(main(["serve", sys.argv[1], *sys.argv[3:]]))
