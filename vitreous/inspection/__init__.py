"""Looking inside a model: what it has learned and what it attends to, as arrays. Nothing is drawn here.

`embeddings` reads the weights alone; `attention`, `distance`, `relevance` and `tokens` watch a forward pass;
`gradients` explains one class; `faithfulness` judges maps; `study` combines forward measurements in one pass.
"""

from vitreous.inspection.attention import attention_maps, iterate_attention
from vitreous.inspection.distance import attention_distance, attention_entropy, receptive_fields
from vitreous.inspection.embeddings import filters, position_similarity
from vitreous.inspection.faithfulness import deletion_insertion
from vitreous.inspection.gradients import grad_cam, gradient_rollout
from vitreous.inspection.relevance import head_maps, rollout
from vitreous.inspection.tokens import cka, token_norms, token_similarity

__all__ = [
    "attention_distance",
    "attention_entropy",
    "attention_maps",
    "cka",
    "deletion_insertion",
    "filters",
    "grad_cam",
    "gradient_rollout",
    "head_maps",
    "iterate_attention",
    "position_similarity",
    "receptive_fields",
    "rollout",
    "token_norms",
    "token_similarity",
]
