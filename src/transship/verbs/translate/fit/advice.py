"""What to do, by case: never simply "translate"."""

from __future__ import annotations

from transship.verbs.translate.fit.trials import FitSettings, MapTrial

# (texts at hand, old encoder at hand) → what to do
CASES = {
    (True, True): "Texts and old encoder at hand: leave the index, search it with the old encoder, and "
    "re-embed the best 50 to 100 candidates of each query with the new one (LazyIndex with embed). It needs "
    "no map.",
    (True, False): "Old encoder gone, texts at hand: search with a translated query (--direction query) and "
    "re-embed the candidates; the index moves to the new model as it is used.",
    (False, True): "Texts gone, old encoder at hand: translate with variance restored and fuse its scores "
    "with the old ones; put past queries among the pairs.",
    (False, False): "Texts and old encoder gone: translate with the kernel map and variance restored, with "
    "past queries among the pairs; expect the loss stated above.",
}
# from so many pairs on, a map that bends usually beats a linear one
ENOUGH_TO_BEND = 1000


def advise(
    chosen: MapTrial, old_alone: float, pairs: int, settings: FitSettings, ndcg_old: float | None
) -> list[str]:
    """Return the advice for what is at hand; where the settings do not say, for every case.

    The reason behind it: on SciFact and Cranfield rows translated with 500 to 4,000 pairs ranked relevant
    documents worse than the old model left alone, by 0.03 to 0.16 of nDCG, although they agreed more with the
    new model's neighbours.
    """
    lines = [
        f"The forecast ({chosen.forecast.recall:.2f} of the new model's top 10 found, document to document, "
        f"against {old_alone:.2f} for the old index left alone) says how far translated rows agree with the "
        "new model, not how well they rank: in our measurements the old model alone ranked relevant "
        "documents better than translated rows did."
    ]
    if chosen.ndcg is not None and ndcg_old is not None:
        better = "the old index as it is" if ndcg_old >= chosen.ndcg else "translated rows"
        figures = f"nDCG {ndcg_old:.3f} old, {chosen.ndcg:.3f} translated"
        lines.append(f"On your own judgements {better} ranks better: {figures}.")
    if chosen.fused is not None and ndcg_old is not None:
        lines.append(f"Fused scores of translated and old rows give nDCG {chosen.fused:.3f}.")
    for (texts, old_encoder), line in CASES.items():
        if settings.texts in (None, texts) and settings.old_encoder in (None, old_encoder):
            lines.append(line)
    if settings.texts is False and not chosen.translator.bends and pairs >= ENOUGH_TO_BEND:
        lines.append(
            "With this many pairs the kernel map usually beats a linear one: compare with --method kernel."
        )
    return lines
