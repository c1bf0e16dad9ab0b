"""What tells one classifier from another: a hash of all that could change an answer."""

import hashlib
import json
from typing import Any

from vitreous import checkpoint
from vitreous.models import architecture
from vitreous.predict.classifier import Classifier


def identity(classifier: Classifier) -> str:
    """Return a hash of the weights, architecture, preprocessing, class names and calibration."""
    facts: dict[str, Any] = {
        "architecture": architecture.to_dict(classifier.model.config),
        "tensors": checkpoint.checksums(
            {name: each.cpu() for name, each in classifier.model.state_dict().items()}
        ),
        "preprocessing": repr(classifier.preprocess.preprocessing),
        "labels": classifier.labels,
        "calibration": [classifier.temperature, classifier.abstain],
        "thresholds": classifier.thresholds if classifier.multilabel else None,
    }
    if classifier.model.merge:
        facts["merge"] = classifier.model.merge
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
