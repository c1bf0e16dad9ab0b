"""From images to labels: classifiers, and the streams of files that `vitreous predict` puts through them."""

from vitreous.predict.classifier import Classifier, Failure, Picture, Prediction, Prepared
from vitreous.predict.loading import load

__all__ = ["Classifier", "Failure", "Picture", "Prediction", "Prepared", "load"]
