"""What sinks are worth, on the real engine: the same texts scored and continued under each KV bound.

Three tasks. "teacher": the text is given, every token is scored. "turn": the same scores, but only of the first tokens
that each speaker says. "free": the engine goes on by itself over several windows, and the unbounded engine scores that.

A text is twice as long as the trained context and is read twice, the second time with its halves swapped: the same
tokens then stand within the trained context and past it, and a difference is the bound's, not the text's.
"""

import asyncio
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.enginelog import starting
from experiments.manifest import Manifest
from experiments.points import engine_options, facts, policy_name
from experiments.progress import Columns, Progress, spread
from experiments.schema import Run
from experiments.sections import Ablation
from metronome.stats import bootstrap_interval
from metronome.tables import Score
from metronome.texts import Dialogue, distinct_ngrams, longest_loop, read_dialogue, segment_means, swap_halves
from metronome.trace import PointSink, TraceWriter
from metronome.window import Bound

COLUMNS: Columns = {
    "kv": lambda r: r["point_id"],
    "ppl before": lambda r: spread(r["teacher_before"], 1),
    "after": lambda r: spread(r["teacher_after"], 1),
    "turns: ppl before": lambda r: spread(r["turn_before"], 1),
    "after ": lambda r: spread(r["turn_after"], 1),
    "free: ppl": lambda r: spread(r["free"], 1),
    "distinct-2": lambda r: spread(r["distinct_2"], 2),
    "distinct-4": lambda r: spread(r["distinct_4"], 2),
    "longest loop": lambda r: spread(r["longest_loop"], 0),
}
CAPTION = "before and after: the trained context; perplexities and means with 95 % intervals over texts"


@dataclass(frozen=True, slots=True)
class Continuation:
    text: str
    prompt: list[int]
    sampled: list[int]


class Experiment:
    """One engine per bound, the unbounded one last: it scores what the others said."""

    def __init__(self, run: Run, directory: Path, manifest: Manifest, progress: Progress) -> None:
        assert run.ablation is not None
        self._run = run
        self._ablation: Ablation = run.ablation
        self._directory = directory
        self._manifest = manifest
        self._progress = progress
        self._sinks: dict[str, PointSink] = {}
        self._said: dict[str, list[Continuation]] = {}

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        bounds = [choice.bound(self._run.engine.block_size) for choice in self._ablation.bounds]
        for bound in [*bounds, None]:
            await self._run_engine(bound, writer)
        results = [self._summarise(point_id, sink) for point_id, sink in self._sinks.items()]
        for result in results:
            self._manifest.add_point(result)
        return results

    async def _run_engine(self, bound: Bound | None, writer: TraceWriter) -> None:
        from metronome.backends.vllm_engine import VllmEngine  # seconds to import: only if used
        from metronome.backends.vllm_score import VllmScorer

        point_id = policy_name(bound)
        self._progress.note(f"starting the engine for {point_id}")
        # The unbounded engine ends at its border: one token is sampled after the text.
        border = None if bound else self._ablation.trained_len + 1
        options = engine_options(self._run, self._directory, point_id, bound, border)
        engine = VllmEngine(self._run.model, options)
        with starting(self._directory / "engine.log"):
            engine.start()
        info, scorer = engine.info(), VllmScorer(engine)
        try:
            self._manifest.add_engine(kv=point_id, **dataclasses.asdict(info))
            sink = self._sinks[point_id] = writer.point(facts(self._run, point_id, info, bound))
            await self._score_texts(scorer, point_id, bound)
            self._said[point_id] = await self._go_on(scorer, point_id)
            self._score_repetition(sink, self._said[point_id])
            if bound is None:
                await self._score_what_was_said(scorer)
        finally:
            engine.stop()

    async def _score_texts(self, scorer: Any, point_id: str, bound: Bound | None) -> None:
        for i, dialogue in enumerate(self._dialogues(scorer)):
            self._progress.note(f"{point_id}: text {i + 1}/{len(self._ablation.texts)} {dialogue.name}")
            for reading in (dialogue, swap_halves(dialogue)):
                ids = reading.ids if bound else reading.ids[: self._ablation.trained_len]
                nll = -await scorer.score(ids)
                self._score_teacher(self._sinks[point_id], reading, nll)
                self._score_turns(self._sinks[point_id], reading, nll)

    def _dialogues(self, scorer: Any) -> list[Dialogue]:
        folder, num_tokens = self._ablation.text_dir, 2 * self._ablation.trained_len
        return [read_dialogue(folder / f"{name}.txt", scorer.encode, num_tokens) for name in self._ablation.texts]

    def _score_teacher(self, sink: PointSink, dialogue: Dialogue, nll: np.ndarray) -> None:
        for start, num_tokens, value in segment_means(nll, 1, self._ablation.segment):
            sink.score(
                Score(task="teacher", text=dialogue.name, metric="nll", start=start, num_tokens=num_tokens, value=value)
            )

    def _score_turns(self, sink: PointSink, dialogue: Dialogue, nll: np.ndarray) -> None:
        size, last = self._ablation.segment, len(nll) + 1
        starts = [s for s in dialogue.turn_starts if s + self._ablation.turn_tokens <= last]
        for segment in sorted({s // size for s in starts}):
            picked = [nll[s - 1 : s - 1 + self._ablation.turn_tokens] for s in starts if s // size == segment]
            values = np.concatenate(picked)
            sink.score(
                Score(task="turn", text=dialogue.name, metric="nll", start=segment * size, num_tokens=len(values),
                      value=float(values.mean()))
            )  # fmt: skip

    async def _go_on(self, scorer: Any, point_id: str) -> list[Continuation]:
        """All continuations at once, each from another place of a text."""
        ablation = self._ablation
        self._progress.note(f"{point_id}: {ablation.continuations} continuations")
        dialogues = self._dialogues(scorer)
        prompts = []
        for i in range(ablation.continuations):
            dialogue, place = dialogues[i % len(dialogues)], i // len(dialogues) * 4 * ablation.prompt_tokens
            prompts.append((f"{dialogue.name}-{place}", dialogue.ids[place : place + ablation.prompt_tokens]))
        temperature = self._run.model.temperature
        sampled = await asyncio.gather(*[scorer.go_on(p, ablation.continue_tokens, temperature) for _, p in prompts])
        return [Continuation(name, p, s) for (name, p), s in zip(prompts, sampled, strict=True)]

    def _score_repetition(self, sink: PointSink, said: list[Continuation]) -> None:
        for one in said:
            values = {
                "distinct_2": distinct_ngrams(one.sampled, 2),
                "distinct_4": distinct_ngrams(one.sampled, 4),
                "longest_loop": float(longest_loop(one.sampled)),
            }
            for metric, value in values.items():
                sink.score(
                    Score(task="free", text=one.text, metric=metric, start=len(one.prompt), num_tokens=len(one.sampled),
                          value=value)
                )  # fmt: skip

    async def _score_what_was_said(self, scorer: Any) -> None:
        for point_id, said in self._said.items():
            self._progress.note(f"the unbounded engine scores what {point_id} said")
            for one in said:
                nll = -(await scorer.score(one.prompt + one.sampled))[len(one.prompt) - 1 :]
                for start, num_tokens, value in segment_means(nll, len(one.prompt), self._ablation.prompt_tokens):
                    self._sinks[point_id].score(
                        Score(task="free", text=one.text, metric="nll", start=start, num_tokens=num_tokens, value=value)
                    )

    def _summarise(self, point_id: str, sink: PointSink) -> dict[str, Any]:
        """Perplexities with 95 % intervals over texts, before and after the trained context."""
        scores, border = sink.trace().scores, self._ablation.trained_len
        early = scores.start < border
        result: dict[str, Any] = {"point_id": point_id}
        for task in ("teacher", "turn"):
            nll = scores[(scores.task == task) & (scores.metric == "nll")]
            result[f"{task}_before"] = perplexity(nll[early.loc[nll.index]])
            result[f"{task}_after"] = perplexity(nll[~early.loc[nll.index]])
        free = scores[scores.task == "free"]
        result["free"] = perplexity(free[free.metric == "nll"])
        for metric in ("distinct_2", "distinct_4", "longest_loop"):
            result[metric] = interval(free[free.metric == metric].value.to_numpy(dtype=float))
        return result


def interval(values: np.ndarray) -> list[float] | None:
    """[mean, low, high] with a bootstrap interval; None without values."""
    return [float(values.mean()), *bootstrap_interval(values)] if len(values) else None


def perplexity(nll: Any) -> list[float] | None:
    """[perplexity, low, high] of rows of mean NLL: tokens are pooled within a text, the interval is over texts."""
    if not len(nll):
        return None
    weighted = (nll.value * nll.num_tokens).groupby(nll.text).sum() / nll.num_tokens.groupby(nll.text).sum()
    found = interval(weighted.to_numpy(dtype=float))
    assert found is not None
    return [float(np.exp(x)) for x in found]
