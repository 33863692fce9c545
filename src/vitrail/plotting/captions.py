"""What each figure of a report shows, and which figure of the paper it is, in words."""

from __future__ import annotations

from typing import NamedTuple


class Caption(NamedTuple):
    """A figure's title, and what is to be seen in it."""

    title: str
    text: str


CAPTIONS = {
    "overlays": Caption(
        "Where the model looks",
        "Attention from the output back to the image, by rollout over all layers: the image, "
        "the mask (bright: attended more) and the image lit by it. The paper's Figures 6 "
        "and 14. The scale goes from the least to the 98th of a hundred patches; what the model "
        "was not shown is black.",
    ),
    "images": Caption("The image", "As it was given; this model has no attention to show on it."),
    "heads": Caption(
        "Attention by layer and head",
        "What the output attends to in each layer (down) and head (across), every tile scaled to "
        "its own largest value. Heads of one layer look at different things.",
    ),
    "distances": Caption(
        "Mean attention distance",
        "How far each head looks, in pixels, averaged over images and queries with the attention "
        "as weight; a dot a head, a line for their mean. Where low layers have both near and far "
        "dots, some heads look around them and others at the whole image. The paper's Figure 7 "
        "(right) and Figure 11; a hybrid has few near heads, as its convolutions look around.",
    ),
    "filters": Caption(
        "Embedding filters",
        "The first principal components of the filters that embed a patch, as colors, row by row. "
        "Trained ones look like a basis for the fine structure in a patch. The paper's Figure 7 "
        "(left), which shows 28.",
    ),
    "positions": Caption(
        "Position embeddings",
        "Each tile is one patch's position: the cosine similarity of its embedding with those of "
        "all patches. Near patches are alike, and so are those of the same row and column. The "
        "paper's Figure 7 (center) and Figure 10.",
    ),
    "components": Caption(
        "Patch tokens in color",
        "The last layer's patch tokens by their three first principal components, as red, green "
        "and blue, the same for all images: like colors are like contents.",
    ),
    "neighbors": Caption(
        "Nearest images",
        "The images of the data whose representation is nearest, by cosine similarity; the "
        "image itself stands first.",
    ),
    "similarity": Caption(
        "Similarity of layers",
        "Linear CKA of the tokens after each layer with those after each other layer, on the same "
        "images: 1 is the same up to rotation and scale.",
    ),
    "norms": Caption(
        "Token norms",
        "The length of the tokens after each layer: median, the middle 90 % and the largest of the "
        "patches. Patches far above all others are the outliers that registers cure "
        "(arXiv 2309.16588).",
    ),
    "lens": Caption(
        "What each layer would answer",
        "The head applied to the output after every layer: probability of the classes that the "
        "last layer finds most likely (logit lens).",
    ),
    "curves": Caption(
        "The run's curves",
        "Loss, learning rate and, where classes are learnt, accuracy by step, from metrics.jsonl.",
    ),
    "predictions": Caption(
        "What the model predicts",
        "Held-out images as they are, with the patches that were chosen in gray, and with what "
        "the model predicts there; of the last evaluation.",
    ),
    "confusion": Caption(
        "Confusion matrix",
        "Part of each true class's images (rows) that were given each class (columns); all on "
        "the diagonal is all right.",
    ),
}
"""Title and text of every figure that plots.py draws, by its name."""
