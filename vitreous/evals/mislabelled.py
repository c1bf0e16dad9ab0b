"""Which labels are likely wrong: what a classifier predicts for pictures that it did not learn from.

Logistic regression on features is fitted to four fifths and predicts the last, five times. As in confident
learning (arXiv 1911.00068), each class has its own yardstick: a label is doubted where another class is
likelier and the given one is far below what is usual for its pictures. Letters: N images, D width, K classes.
"""

from dataclasses import dataclass

import numpy as np
import torch

from vitreous.evals import linear

FOLDS = 5
STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
"""λ of the regression that are tried on the first fold, from strong to weak."""
STRONGER = 3.0
"""The λ that predicts labels best still learns some wrong ones by heart: this multiple of it is used."""
FAR_BELOW = 0.15
"""A doubted label has less than this share of the probability that is usual for its class."""
FEWEST = FOLDS
"""Images that a class must have for its labels to be judged."""


@dataclass(frozen=True)
class Doubts:
    """What the other pictures say about each label."""

    probability: np.ndarray  # (N,) of the given label
    suggested: np.ndarray  # (N,) the likeliest other class
    other: np.ndarray  # (N,) its probability
    doubted: np.ndarray  # (N,) bool

    @property
    def ranked(self) -> np.ndarray:
        """The doubted ones, the clearest first."""
        rows = np.flatnonzero(self.doubted)
        return rows[np.argsort((self.probability - self.other)[rows], kind="stable")]


def judge(
    features: np.ndarray, targets: np.ndarray, classes: int, groups: np.ndarray, seed: int = 0
) -> Doubts:
    """Judge labels (N,) by the other pictures; copies (equal in `groups`) don't vouch for each other."""
    fold = folds(targets, groups, seed)
    strength = STRONGER * choose(features, targets, classes, fold)
    return doubts(probabilities(features, targets, classes, fold, strength), targets)


def folds(targets: np.ndarray, groups: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the fold (N,) of each image: classes are spread evenly, a group is never split."""
    generator = np.random.default_rng(seed)
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    order = generator.permutation(len(first))
    order = order[np.argsort(targets[first[order]], kind="stable")]
    found = np.empty(len(first), np.int64)
    found[order] = np.arange(len(first)) % FOLDS
    return found[inverse]


def choose(features: np.ndarray, targets: np.ndarray, classes: int, fold: np.ndarray) -> float:
    """Return the λ that predicts the labels of the first fold best from the others, by cross entropy."""
    asked, weights = fold == 0, None
    losses: dict[float, float] = {}
    for strength in STRENGTHS:  # each starts where the last ended
        weights = linear.fit(features[~asked], targets[~asked], classes, strength, weights, exact=False)
        scores = torch.from_numpy(linear.scores(features[asked], weights))
        losses[strength] = float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(targets[asked])))
    return min(losses, key=lambda strength: losses[strength])


def probabilities(
    features: np.ndarray, targets: np.ndarray, classes: int, fold: np.ndarray, strength: float
) -> np.ndarray:
    """Return the probabilities (N, K) of each image by a regression that was fitted without its fold."""
    found = np.zeros((len(targets), classes))
    for number in range(FOLDS):
        asked = fold == number
        if asked.any() and not asked.all():
            weights = linear.fit(features[~asked], targets[~asked], classes, strength, exact=False)
            scores = torch.from_numpy(linear.scores(features[asked], weights))
            found[asked] = scores.double().softmax(1).numpy()
    return found


def doubts(held_out: np.ndarray, targets: np.ndarray) -> Doubts:
    """Apply the rule to held-out probabilities (N, K)."""
    rows, classes = np.arange(len(targets)), held_out.shape[1]
    own = held_out[rows, targets]
    counts = np.bincount(targets, minlength=classes)
    usual = np.bincount(targets, own, minlength=classes) / np.maximum(1, counts)
    usual[counts < FEWEST] = 0.0  # too few to know what is usual: none is doubted
    others = held_out.copy()
    others[rows, targets] = -1.0
    suggested = others.argmax(1)
    other = others[rows, suggested]
    return Doubts(own, suggested, other, (own < FAR_BELOW * usual[targets]) & (other > own))
