"""The title and caption of each figure, and which figure of the paper it is."""

from __future__ import annotations

from typing import NamedTuple


class Caption(NamedTuple):
    """A figure's title, and what it shows."""

    title: str
    text: str


CAPTIONS = {
    "pareto": Caption(
        "Accuracy and speed",
        "Each backbone's linear probe on the test images, with its 95 % interval, and how many "
        "images it encodes per second here. The line joins those that no other beats in both; the "
        "recommended one stands out.",
    ),
    "study": Caption("What was measured", "Means over seeds, with 95 % intervals (Student's t)."),
    "overlays": Caption(
        "Where the model looks",
        "Attention rollout over all layers: the image, the attention mask (bright: attended more) "
        "and the image lit by the mask, as in the paper's Figures 6 and 14. The scale ends at the "
        "98th percentile of the patches; black parts were cropped away before the model.",
    ),
    "images": Caption("The image", "As it was given; this model has no attention to show on it."),
    "heads": Caption(
        "Attention by layer and head",
        "What the output attends to in each layer (rows) and head (columns). Each tile is scaled "
        "to its own maximum. Heads of one layer attend to different things.",
    ),
    "distances": Caption(
        "Mean attention distance",
        "How far each head looks, in pixels: attention-weighted, averaged over images and query "
        "patches. One dot per head, and a line for their mean. Where low layers have both near and "
        "far dots, some heads attend locally and others globally. The paper's Figure 7 (right) and "
        "Figure 11; a hybrid has fewer local heads, since its convolutions are local already.",
    ),
    "filters": Caption(
        "Embedding filters",
        "The first principal components of the patch embedding's filters, as colors, row by row. "
        "After training they look like a basis for the fine structure within a patch. The paper's "
        "Figure 7 (left) shows 28.",
    ),
    "positions": Caption(
        "Position embeddings",
        "One tile per patch: the cosine similarity of its position embedding with those of all "
        "patches. Nearby patches are similar, and so are patches of the same row or column. The "
        "paper's Figure 7 (center) and Figure 10.",
    ),
    "components": Caption(
        "Patch tokens in color",
        "The first three principal components of the last layer's patch tokens as red, green and "
        "blue, with the same colors in all images: similar colors mean similar content.",
    ),
    "neighbors": Caption(
        "Nearest images",
        "The images of the dataset with the most similar features (cosine similarity); the query "
        "image is on the left.",
    ),
    "similarity": Caption(
        "Similarity of layers",
        "Linear CKA between the tokens after each layer of one model and of the other, on the same "
        "images. 1 means the same up to rotation and scale.",
    ),
    "norms": Caption(
        "Token norms",
        "The norm of the tokens after each layer: median, central 90 % and maximum over the "
        "patches. Patches far above all others are the outliers that registers remove "
        "(arXiv 2309.16588).",
    ),
    "lens": Caption(
        "Prediction after each layer",
        "The head applied to the output of every layer (logit lens): the probability of the "
        "classes that the last layer finds most likely.",
    ),
    "curves": Caption(
        "Training curves",
        "Loss, learning rate and, for classification, accuracy by step, from metrics.jsonl.",
    ),
    "predictions": Caption(
        "What the model predicts",
        "Held-out images, the same with the masked patches in gray, and with the model's "
        "predictions for these patches, at the last evaluation.",
    ),
    "confusion": Caption(
        "Confusion matrix",
        "Fraction of each true class's images (rows) that were predicted as each class (columns). "
        "A perfect model has everything on the diagonal.",
    ),
    "reliability": Caption(
        "Reliability diagram",
        "Accuracy by confidence, and how many images there are in each bin. On the dashed line, "
        "the model is as confident as it is accurate.",
    ),
}
"""Title and caption of every figure, by its name."""
