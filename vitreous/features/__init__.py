"""Pictures as a model sees them: an index of features, the nearest to a query, what looks wrong."""

from vitreous.features.clean import clean
from vitreous.features.embed import embed
from vitreous.features.search import search

__all__ = ["clean", "embed", "search"]
