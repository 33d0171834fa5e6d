"""What has to be known about a paper beside its figures: where it contradicts itself, or cannot be right."""

from __future__ import annotations

from transship_suites.runner.declaration import Paper

# by the paper's title; one paragraph each line
_NOTES: dict[str, tuple[str, ...]] = {
    "Transporting Task Vectors across Different Architectures without Training": (
        "Eq. 10 (and Algorithm 1) is transposed against the shapes of Eq. 5; the released code has the form"
        " that is used here. Towards a narrower model Eq. 5 has no solution: the polar factor then solves "
        "the swapped problem, and the update's norm shrinks.",
        "The paper does not say how many seeds stand behind a cell, which prompts its zero-shot heads have,"
        " which λ Tikhonov has, or where the pseudo-inverse is cut off. α is said to be chosen on a "
        "validation set; two configurations of the released code search it on test rows.",
        "Class token, positions and patch embedding are not mentioned; the released code leaves them as "
        "they are in the target, and so does `theseus-clip`. Table 5 does not name its pair of models: its "
        "zero-shot row and its interpolate2d rows are those of Table 8.",
        "Three printed means are not the means of their rows: the pseudo-inverse at B = 2 (52.25 for 52.75)"
        " and B = 5 (56.80 for 56.05) in Table 1, and mean alignment at B = 2 (68.44 for 68.19) in Table 5.",
    ),
    "Merging without Forgetting: Continual Fusion of Task-Specific Models via Optimal Transport": (
        "A positive BWT of OTMF measures its heads: the head of a task is tuned at the step after its own, "
        "so that the accuracy at arrival is one of an untuned head. Rows with own heads, which never "
        "change, stand beside. Heads are tuned for 100 steps of 0.01 (Sections 4.3 and 5.1) or for 1,000 of"
        " 0.001 (Appendix A.6).",
        "Algorithm 1 has one set of inputs and masks that outlast a step; Appendix A.7 speaks of the data "
        "of two tasks, Section 3.3 of no replay. Here masks start from ones at every step, one reads inputs"
        " of the task before (one task of replay) and one those of the task that arrives. An epoch is one "
        "batch: 200 of them in 30 s on a V100 leave no other reading. ε is not given (here 0.05 of the mean"
        " cost). The text says that a larger α overwrites specialists; it multiplies what was merged "
        "before.",
        "Cells that cannot be right: DTD at 97 to 98 in Tables 2 and 5, while its own fine-tune has 79.4; "
        "TSV-M in Table 3 equals task arithmetic digit by digit and has 86.6 in Table 1; the columns of "
        "joint task arithmetic, TIES and Concrete in Table 3 look permuted; continual task arithmetic has "
        "67.5 in Table 1 and 50.2 in Table 2; OTMF without masks has 64.0 on both backbones; OTMF on "
        "Flan-T5 has 80.0 in Table 4 and 79.5 in Appendix A.2; a bold −4.85 stands beside −1.3 and +1.9. "
        "The means of TSV-M in Table 2 (73.4 for 74.0) and of α = 0.7 and 0.9 in Table 5 (76.4 for 75.0, "
        "71.0 for 70.4) are not those of their rows.",
        "Its AdaMerging rows read test inputs; ours read training inputs. A head tuned on the unmerged "
        "base, which α = 1 amounts to (65.8), is never shown beside; here it is.",
    ),
    "Latent Space Translation via Inverse Relative Projection": (
        "The paper names families of encoders and not checkpoints. It speaks of four language models and "
        "counts 20 ordered pairs of them in Table 2, which four cannot give.",
        "It does not say how many anchors Table 2 has, which of the two spaces is pruned, or what the heads"
        " are. With about as many anchors as dimensions the inverse is at its worst, and a fixed δ lands "
        "there for some numbers of anchors: guarded and direct maps stand beside.",
        "No single affine map reproduces IRP exactly, since the length of every row is divided out before; "
        "it does so up to a positive factor of the centred row.",
    ),
    "Rethinking Cross-Modal Fine-Tuning: Optimizing the Interaction between Feature Alignment and "
    "Target Fitting": (
        "The released code takes the test set for validation and keeps the best weights on it; its "
        "Spherical loader adds a quarter of the test rows to the training rows. Figures that rest on this "
        "cannot be targets. Here validation rows are of the training split.",
        "The released label matching minimises H(Z|Z') and not the H(Z'|Z) of the text, without the term "
        "that prevents collapse; its frozen source head is trained along; its alignment is a debiased "
        "Sinkhorn divergence of squared distances without ω. Here all follow the text.",
        "Tables 9 and 10 and the loaders disagree: 1,024 points and 128² are listed, 256 (advection) and "
        "64² (Darcy) are read; η = ζ = 1 is listed, the file of 0.1 is read; Table 9 gives "
        "diffusion-sorption, a series, to Swin. Table 11's row of losses is shifted. FSD50K of "
        "NAS-Bench-360 is 0.63 in Table 2 and 0.60 in Table 4.",
        "Burgers with ν = 1 is constant at t = 2, the mean of its input; diffusion-sorption and shallow "
        "water have one random number each; diffusion-reaction in 2D asks for v(T) from u(0) while v(0) is "
        "hidden noise, which may be why every method sits at 0.82. Table 3 sets single jumps beside "
        "operators that predict step by step.",
        "Alignment followed by a plain supervised warm-up of the same length is a control that the paper "
        "lacks; it stands beside RECRAFT here. MoNA has no code: that row is our reading of its text.",
    ),
}


def paper_notes(paper: Paper) -> str:
    """Return what is known against the paper's own words and figures; empty where nothing is."""
    return "\n\n".join(_NOTES.get(paper.title, ()))
