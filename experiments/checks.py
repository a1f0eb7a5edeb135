"""What no single key of a configuration shows: whether its parts fit each other. Refused by key, value and fix."""

from typing import TYPE_CHECKING

from experiments import checkpoints
from metronome.stats import MIN_LEVELS
from metronome.texts import find_texts
from metronome.window import Bound, blocks_for

if TYPE_CHECKING:
    from experiments.schema import Run
    from experiments.sections import Ablation, Admission, Capacity, LongCall, Saturation


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, the value and the fix."""


def check(run: "Run") -> None:
    """What no single key shows."""
    if run.generality:
        for name, case in run.cases().items():
            check(case)
            _check_length(name, case)
        return
    _check_points(run)
    _check_engine(run)
    _check_modes(run)
    _check_sections(run)
    _check_files(run)


def _check_points(run: "Run") -> None:
    for key, values in (("workload.sessions", run.workload.sessions), ("kv.modes", run.kv.modes)):
        if not values:
            example = "kv.modes=[window]" if key == "kv.modes" else "workload.sessions=[8]"
            raise ConfigError(f"{key}=[]: name at least one, e.g. {example}")
        if len(set(values)) < len(values):
            raise ConfigError(f"{key}={values}: names a point twice; name each once")
    for num_sessions in run.workload.sessions:
        run.workload.make_sessions(num_sessions)
        if num_sessions > run.engine.max_num_seqs:
            raise ConfigError(
                f"workload.sessions has {num_sessions}, engine.max_num_seqs={run.engine.max_num_seqs}: "
                f"set engine.max_num_seqs to {num_sessions} or more"
            )


def _check_engine(run: "Run") -> None:
    if run.engine.max_num_batched_tokens < run.engine.max_num_seqs:
        raise ConfigError(
            f"engine.max_num_batched_tokens={run.engine.max_num_batched_tokens}: vLLM wants "
            f"engine.max_num_seqs={run.engine.max_num_seqs} or more; raise it"
        )
    per_frame = run.frame_tokens.growth
    if run.engine.max_model_len <= per_frame:
        raise ConfigError(
            f"engine.max_model_len={run.engine.max_model_len}: one frame alone takes {per_frame} tokens; "
            "raise it, or shorten workload.period_ms"
        )


def _check_modes(run: "Run") -> None:
    own = run.model.backend != "vllm"  # it keeps its cache by itself
    if own != ("own" in run.kv.modes) or (own and len(run.kv.modes) > 1):
        raise ConfigError(
            f"kv.modes={run.kv.modes}: {run.model.name} is served by {run.model.backend}, and 'own' is the one mode of "
            "a backend that keeps its cache by itself; set kv=own for it, and another kv for all others"
        )
    if "recycle" in run.kv.modes:
        _check_recycling(run)


def _check_sections(run: "Run") -> None:
    if run.ablation:
        _check_ablation(run, run.ablation)
    elif run.long_call:
        _check_long_call(run, run.long_call)
    elif run.model.backend == "vllm":
        for mode in run.kv.modes:
            _check_pool(run, run.bound(mode))
    if run.session_age and not run.model.audio:
        raise ConfigError(
            f"model.name={run.model.name}: hears no audio, which session_age is about; name another model"
        )
    if run.saturation:
        _check_saturation(run, run.saturation)
    if run.capacity:
        _check_capacity(run, run.capacity)
    if run.admission:
        _check_admission(run, run.admission)


def _check_length(name: str, case: "Run") -> None:
    """A session that meets max_model_len would end for another reason than the pool."""
    length = case.workload.num_frames * case.frame_tokens.growth
    if case.model.backend == "vllm" and length >= case.engine.max_model_len:
        raise ConfigError(
            f"engine.max_model_len={case.engine.max_model_len}: a session of case {name} comes to {length} tokens; "
            f"shorten generality.cases.{name}.workload.duration_s"
        )


def _check_pool(run: "Run", bound: Bound | None) -> None:
    """vLLM starts only if one session of max_model_len fits; bounded, only its plateau must."""
    engine = run.engine
    usable = engine.num_blocks - 1
    if bound is None:
        need = blocks_for(engine.max_model_len, engine.block_size)
        fix = (
            f"engine.num_blocks to {need + 1} or more, or engine.max_model_len to {usable * engine.block_size} or less"
        )
    else:
        # vLLM reserves for two batches in flight: blocks behind a window go once the step that left them has settled.
        need = bound.max_blocks(min(2 * engine.max_num_batched_tokens, engine.max_model_len))
        fix = f"engine.num_blocks to {need + 1} or more, or kv.window or engine.max_num_batched_tokens lower"
    if usable < need:
        raise ConfigError(
            f"engine.num_blocks={engine.num_blocks}: {usable} usable blocks cannot hold one session, "
            f"which needs {need}; set {fix}"
        )


def _check_recycling(run: "Run") -> None:
    """A request must outlive its first frame, and all of them must fit the pool."""
    kv, tokens, engine = run.kv, run.frame_tokens, run.engine
    if run.model.audio or run.model.turns_vary:
        raise ConfigError(
            f"kv.modes={kv.modes}: {run.model.name} hears audio or ends its turns by itself; mode 'recycle' computes "
            "token ids once more, in turns of one length: leave it out"
        )
    least = (kv.window or 0) + kv.sinks + 2 * (tokens.num_in + tokens.num_out)
    if kv.window is None or kv.recycle_at is None or kv.recycle_at < least:
        raise ConfigError(
            f"kv.recycle_at={kv.recycle_at}: mode 'recycle' needs kv.window, and a limit of {least} tokens or more: "
            "what is kept, and two frames"
        )
    need = max(run.workload.sessions) * blocks_for(kv.recycle_at, engine.block_size)
    if need > engine.num_blocks - 1:
        raise ConfigError(
            f"kv.recycle_at={kv.recycle_at}: {max(run.workload.sessions)} sessions of it take {need} blocks; raise "
            f"engine.num_blocks to {need + 1} or lower it"
        )


def _check_saturation(run: "Run", saturation: "Saturation") -> None:
    """The line must have enough of the fill to go by."""
    engine, most = run.engine, max(run.workload.sessions)
    periods = saturation.fit_until * (engine.num_blocks - 1) * engine.block_size / (most * run.frame_tokens.growth)
    if periods < MIN_LEVELS + 1:
        raise ConfigError(
            f"saturation.fit_until={saturation.fit_until}: with workload.sessions={most} the pool is that full after "
            f"{periods:.1f} periods, a line takes {MIN_LEVELS + 1}; raise engine.num_blocks or lower workload.sessions"
        )


def _check_capacity(run: "Run", capacity: "Capacity") -> None:
    if len(run.kv.modes) > 1:
        raise ConfigError(f"kv.modes={run.kv.modes}: one mode has one N*; name one, e.g. kv=sinks")
    if run.workload.duration_s - capacity.warm_up_s < 5 * run.workload.period_ms / 1000:
        raise ConfigError(
            f"capacity.warm_up_s={capacity.warm_up_s}: leaves less than 5 periods of "
            f"workload.duration_s={run.workload.duration_s} to judge by; lengthen the latter"
        )

    if capacity.ceiling_frames > run.workload.num_frames:
        raise ConfigError(
            f"capacity.ceiling_frames={capacity.ceiling_frames}: workload.duration_s={run.workload.duration_s} holds "
            f"{run.workload.num_frames} frames; lower the former"
        )


def _check_admission(run: "Run", admission: "Admission") -> None:
    from experiments.admission import make_cases, make_limit

    run.workload.make_arrivals(admission.offered)
    if not admission.cases:
        raise ConfigError("admission.cases=[]: name at least one, e.g. {kv: window, policy: aimd}")
    for case in admission.cases:
        if case.kv not in run.kv.modes:
            raise ConfigError(f"admission.cases has kv={case.kv}: not in kv.modes={run.kv.modes}; add it there")
    for made in make_cases(run):
        make_limit(run, made)
    if run.workload.duration_s * 1000 < 3 * admission.control_ms:
        raise ConfigError(
            f"admission.control_ms={admission.control_ms}: workload.duration_s={run.workload.duration_s} holds less "
            "than three control windows; lengthen it"
        )


def _check_knows_text(run: "Run") -> None:
    if run.model.weights != "real":
        raise ConfigError(f"model.weights={run.model.weights}: random weights know no text; use real ones")


def _check_ablation(run: "Run", ablation: "Ablation") -> None:
    _check_knows_text(run)
    if not ablation.texts or not ablation.bounds:
        raise ConfigError("ablation.texts and ablation.bounds: name at least one of each")
    for name in ablation.texts:
        if not (ablation.text_dir / f"{name}.txt").exists():
            raise ConfigError(
                f"ablation.texts has {name}: not in {ablation.text_dir}; fetch it: python scripts/fetch_text.py"
            )
    if run.engine.max_model_len <= 2 * ablation.trained_len:
        raise ConfigError(
            f"ablation.trained_len={ablation.trained_len}: texts are twice as long, and must be below "
            f"engine.max_model_len={run.engine.max_model_len}"
        )
    for choice in ablation.bounds:
        _check_pool(run, choice.bound(run.engine.block_size))


def _check_long_call(run: "Run", call: "LongCall") -> None:
    _check_knows_text(run)
    find_texts(call.text_dir)
    if run.engine.max_model_len <= call.num_tokens:
        raise ConfigError(
            f"long_call.num_tokens={call.num_tokens}: must be below engine.max_model_len={run.engine.max_model_len}"
        )
    for choice in call.bounds:
        _check_pool(run, choice.bound(run.engine.block_size))


def _check_files(run: "Run") -> None:
    from metronome.audio import LogMelCodec, find_clips  # brings librosa: only once the rest is known to be right

    if run.target.name == "vllm":
        checkpoints.check(run.model)
    if run.workload.says == "text":
        find_texts(run.workload.text_dir)
        return
    if not run.model.audio:
        LogMelCodec(tokens_per_second=1000 * run.frame_tokens.num_in / run.workload.period_ms)
    find_clips(run.speech.dir)
