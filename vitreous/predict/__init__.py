"""From images to labels: classifiers, and the streams of files that `vitreous predict` puts through them."""

from vitreous.predict.classifier import Classifier, Picture, Prediction, Prepared
from vitreous.predict.loading import load

__all__ = ["Classifier", "Picture", "Prediction", "Prepared", "load"]
