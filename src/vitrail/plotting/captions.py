"""The title and caption of each figure, and which figure of the paper it is."""

from __future__ import annotations

from typing import NamedTuple


class Caption(NamedTuple):
    """A figure's title, one sentence on what to see in it, and how it was made."""

    title: str
    see: str
    how: str


CAPTIONS = {
    "pareto": Caption(
        "Accuracy and speed",
        "Right is faster, up is more accurate; the recommended backbone stands out.",
        "Each backbone's linear probe on the test images, with its 95 % interval, and how "
        "many images it encodes per second here. The line joins those that no other beats in "
        "both.",
    ),
    "study": Caption(
        "What was measured",
        "Bars that do not overlap differ; verdicts compare seed by seed and see smaller effects.",
        "Means over seeds, with 95 % intervals (Student's t).",
    ),
    "overlays": Caption(
        "Where the model looks",
        "The model looked most at the bright patches, whatever its answer; they should cover the "
        "object.",
        "Attention rollout over all layers: the image, the attention mask and the image lit "
        "by the mask, as in the paper's Figures 6 and 14. The scale ends at the 98th "
        "percentile of the patches; black parts were cropped away before the model. Rollout "
        "knows no class.",
    ),
    "images": Caption(
        "The image",
        "As it was given; this model has no attention to show on it.",
        "",
    ),
    "heads": Caption(
        "Attention by layer and head",
        "Heads of one layer attend to different things; the last rows should find the object.",
        "What the output attends to in each layer (rows) and head (columns). Each tile is "
        "scaled to its own maximum.",
    ),
    "distances": Caption(
        "Mean attention distance",
        "Where low layers have both near and far dots, some heads attend locally and others "
        "globally.",
        "How far each head looks, in pixels: attention-weighted, averaged over images and "
        "query patches. One dot per head, and a line for their mean. The paper's Figure 7 "
        "(right) and Figure 11; a hybrid has fewer local heads, since its convolutions are "
        "local already.",
    ),
    "filters": Caption(
        "Embedding filters",
        "After training they look like a basis for the fine structure within a patch; noise "
        "means little training.",
        "The first principal components of the patch embedding's filters, as colors, row by "
        "row. The paper's Figure 7 (left) shows 28.",
    ),
    "positions": Caption(
        "Position embeddings",
        "Each tile should be brightest at its own place: nearby patches are similar, and so "
        "are those of a row or column.",
        "One tile per patch: the cosine similarity of its position embedding with those of "
        "all patches. The paper's Figure 7 (center) and Figure 10.",
    ),
    "components": Caption(
        "Patch tokens in color",
        "Similar colors mean similar content: a part of an object should have one color in "
        "all images.",
        "The first three principal components of the last layer's patch tokens as red, green "
        "and blue, with the same colors in all images.",
    ),
    "neighbors": Caption(
        "Nearest images",
        "The neighbors should show the same class as the query image on the left.",
        "The images of the dataset with the most similar features (cosine similarity).",
    ),
    "similarity": Caption(
        "Similarity of layers",
        "A bright diagonal means that the two models compute alike at the same depth.",
        "Linear CKA between the tokens after each layer of one model and of the other, on "
        "the same images. 1 means the same up to rotation and scale.",
    ),
    "norms": Caption(
        "Token norms",
        "Patches far above all others are the outliers that registers remove (arXiv 2309.16588).",
        "The norm of the tokens after each layer: median, central 90 % and maximum over the "
        "patches.",
    ),
    "lens": Caption(
        "Prediction after each layer",
        "The layer where the line of the right class rises is where the model recognizes it.",
        "The head applied to the output of every layer (logit lens): the probability of the "
        "classes that the last layer finds most likely.",
    ),
    "curves": Caption(
        "Training curves",
        "Loss should fall; if that of validation rises while that of training falls, the "
        "model overfits.",
        "Loss, learning rate and, for classification, accuracy by step, from metrics.jsonl.",
    ),
    "predictions": Caption(
        "What the model predicts",
        "The right column should resemble the left: there, the gray patches are filled in by "
        "the model.",
        "Held-out images, the same with the masked patches in gray, and with the model's "
        "predictions for these patches, at the last evaluation.",
    ),
    "scatter": Caption(
        "Predicted over true numbers",
        "Dots far from the dashed line are large errors; a cloud flatter than the line means that "
        "the model stays near the mean.",
        "One dot per image; on the line, both are the same.",
    ),
    "confusion": Caption(
        "Confusion matrix",
        "Everything off the diagonal is a mistake: a dark cell there is a pair of classes "
        "that are mixed up.",
        "Fraction of each true class's images (rows) that were predicted as each class (columns).",
    ),
    "reliability": Caption(
        "Reliability diagram",
        "On the dashed line, the model is as confident as it is accurate; below it, it is "
        "overconfident.",
        "Accuracy by confidence, and how many images there are in each bin.",
    ),
}
"""Title and caption of every figure, by its name."""
