"""Every experiment composes and loads; what cannot be run is refused by name, before anything is started."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import schema
from metronome.saturation import predict_t_sat_ns

CONF = Path(schema.__file__).parent / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONF / "exp").glob("*.yaml"))


def load(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return schema.load(compose("run", overrides=list(overrides)))


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)


def test_there_are_experiments():
    assert {"cliff_sweep", "smoke"} <= set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_loads(name):
    run = load(f"+exp={name}", "target=none")
    assert run.name == name
    assert (CONF / "exp" / f"{name}.yaml").read_text().startswith("# @package _global_\n")


@pytest.mark.parametrize("group", ["kv", "workload", "model"])
def test_every_choice_of_a_group_loads(group):
    for path in (CONF / group).glob("*.yaml"):
        belongs = {"kv/own": ["model=moshi_duplex"], "model/moshi_duplex": ["kv=own"]}.get(f"{group}/{path.stem}", [])
        assert isinstance(load(f"{group}={path.stem}", "target=none", *belongs), schema.Run)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+kv.window_tokenz=5", r"kv.window_tokenz=5: unknown key; did you mean kv.window\?"),
        ("+typo=1", "typo=1: unknown key; remove it"),
        ("+engine.num_block=1", r"engine.num_block=1: unknown key; did you mean engine.num_blocks\?"),
        ("+model.tokens_outt=1", r"model.tokens_outt=1: unknown key; did you mean model.tokens_out\?"),
        ("workload.sessions=[0]", "workload.sessions has 0: each entry must be 1 or more"),
        ("workload.sessions=[]", "workload.sessions=\\[\\]: name at least one"),
        ("workload.sessions=[8,8]", "workload.sessions=\\[8, 8\\]: names a point twice"),
        ("model.tokens_per_second=24", "model.tokens_per_second=24.0: a token must span a multiple of 4 samples"),
        ("workload.sessions=[300]", "engine.max_num_seqs to 300 or more"),
        ("workload.period_ms=30", "workload.period_ms=30: .* set a multiple of 40 ms"),
        ("workload.duration_s=0.1", "workload.duration_s=0.1: shorter than one period"),
        ("workload.phases=drifting", "workload.phases='drifting': must be one of"),
        ("speech.dir=missing/", "speech.dir=missing: is no directory; .*speech.dir=data/speech"),
        ("kv.window=16", "kv.window=16: smaller than one block of 32 tokens"),
        ("kv.window=null", "kv.window=null: mode 'window' needs a size"),
        ("kv.window=many", "kv.window='many': input should be a valid integer"),
        ("kv.sinks=-1", "kv.sinks=-1"),
        ("kv.positions=float", "kv.positions='float': must be one of keep, anchor"),
        ("kv.modes=[]", "kv.modes=\\[\\]"),
        ("kv.modes=[sliding]", "kv.modes.0='sliding'"),
        ("engine.num_blocks=100", "engine.num_blocks=100: 99 usable blocks cannot hold one session, which needs 128"),
        ("engine.num_blocks=20", "engine.num_blocks=20: 19 usable blocks cannot hold one session"),
        ("engine.block_size=0", "engine.block_size=0"),
        ("out.sample_ms=0", "out.sample_ms=0: input should be greater than or equal to 1"),
        ("engine.max_num_batched_tokens=100", "engine.max_num_batched_tokens=100: vLLM wants engine.max_num_seqs=256"),
        ("engine.max_model_len=28", "engine.max_model_len=28: one frame alone takes 28 tokens"),
        ("model.weights=guessed", "model.weights='guessed'"),
        ("model.num_audio_tokens=0", "model.num_audio_tokens=0: must be 1 or more"),
        ("workload.mean_lifetime_s=0.2", "workload.mean_lifetime_s=0.2: shorter than one period of 1000 ms"),
        ("+repeat={batches: 0, runs: 1}", "repeat.batches=0: input should be greater than or equal to 1"),
        ("+saturation={fit_until: 1.5}", "saturation.fit_until=1.5: input should be less than 1"),
        (
            "+saturation={fit_until: 0.3}",
            "saturation.fit_until=0.3: with workload.sessions=12 .* raise engine.num_blocks",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(override, message):
    with pytest.raises(schema.ConfigError, match=message):
        load("+exp=cliff_sweep", "target=none", override)


@pytest.mark.parametrize(
    ("exp", "override", "message"),
    [
        ("capacity", "kv=compare", "kv.modes=.*: one mode has one N\\*"),
        ("capacity", "capacity.warm_up_s=35", "capacity.warm_up_s=35.0: leaves less than 5 periods"),
        ("capacity", "capacity.ceiling_frames=21", "capacity.ceiling_frames=21: .* holds 18 frames"),
        ("capacity", "capacity.target_fraction=2", "capacity.target_fraction=2: input should be less than or equal"),
        ("admission", "workload.mean_lifetime_s=null", "workload.mean_lifetime_s=null: callers who come and go need"),
        ("admission", "admission.offered=[]", "workload.offered=\\[\\]: name one load or more"),
        ("admission", "admission.cases=[]", "admission.cases=\\[\\]: name at least one"),
        ("admission", "kv=sinks", "admission.cases has kv=unbounded: not in kv.modes"),
        ("admission", "admission.aimd.decrease=1.5", "admission.decrease=1.5: must lie between 0 and 1"),
        ("admission", "admission.control_ms=100000", "admission.control_ms=100000: .* holds less than three control"),
        ("admission", "admission.n_star=0", "admission.n_star=0: input should be greater than or equal to 1"),
        ("admission", "admission.cases=[{kv: window, policy: fifo}]", "admission.cases.0.policy='fifo'"),
    ],
)
def test_what_no_policy_can_do_is_refused_by_name(exp, override, message):
    with pytest.raises(schema.ConfigError, match=message):
        load(f"+exp={exp}", "target=none", override)


def test_a_missing_checkpoint_is_refused_with_the_command_that_builds_it():
    with pytest.raises(
        schema.ConfigError, match="model.checkpoint=./nowhere: no checkpoint of smollm2 there; .*make setup"
    ):
        load("model.checkpoint=./nowhere")


def test_a_bounded_pool_need_not_hold_max_model_len():
    run = load("kv=sinks", "engine.max_model_len=1000000", "target=none")
    assert run.engine.max_model_len > run.engine.num_blocks * run.engine.block_size


@pytest.mark.parametrize("exp", ["sink_ablation", "long_call"])
def test_random_weights_are_refused_where_text_is_judged(exp):
    with pytest.raises(schema.ConfigError, match="model.weights=tiny: random weights know no text"):
        load(f"+exp={exp}", "model.weights=tiny")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=minicpm_o_4_5", "workload.period_ms=80"], "minicpm_o_4_5 hears nothing in frames below 100 ms"),
        (["model=qwen3_omni_30b", "workload.period_ms=500"], "qwen3_omni_30b's codec.*set a multiple of 1000 ms"),
        (
            ["model=qwen2_5_omni", "model.weights=real"],
            "Qwen/Qwen2.5-Omni-7B: qwen2_5_omni is not in the hub.*hf download",
        ),
        (
            ["model=qwen2_5_omni", "model.weights=fake"],
            "model.weights='fake': must be one of real, tiny",
        ),
        (["model=moshi_duplex"], r"moshi_duplex is served by moshi_duplex.*set kv=own"),
        (["kv=own"], "smollm2 is served by vllm.*set kv=own for it, and another kv for all others"),
        (["kv.modes=[recycle]"], "kv.recycle_at=None: mode 'recycle' needs kv.window"),
        (["kv.modes=[recycle]", "kv.recycle_at=4000", "workload.sessions=[8]"], "8 sessions of it take 1000 blocks"),
        (["kv.modes=[recycle]", "kv.recycle_at=600", "model=qwen2_5_omni"], "qwen2_5_omni hears audio"),
        (["+exp=session_age", "model=smollm2"], "model.name=smollm2: hears no audio"),
        (["workload=agent", "workload.text_dir=nowhere"], r"text.dir=nowhere: no \*.txt there"),
    ],
)
def test_what_does_not_fit_a_model_is_refused_by_name(overrides, message):
    with pytest.raises(schema.ConfigError, match=message):
        load(*overrides)


def test_a_case_runs_the_fewest_sessions_that_fill_the_pool():
    run = load("+exp=generality", "target=none")
    for name, case in run.cases().items():
        if case.model.backend == "vllm":
            (sessions,) = case.workload.sessions
            assert case.marginal_sessions(run.generality.fill_by) == sessions, name
            if sessions > 1:
                specs = case.workload.make_sessions(sessions - 1)
                pool = case.engine.num_blocks - 1
                t_sat = predict_t_sat_ns(specs, case.frame_tokens, pool, case.engine.block_size)
                assert t_sat is None or t_sat > run.generality.fill_by * case.workload.duration_ns, name


def test_sessions_of_a_case_can_be_named():
    assert load("+exp=generality", "target=none", "generality.cases.moshi.workload.sessions=[2]").cases()[
        "moshi"
    ].workload.sessions == [2]


def test_a_case_whose_sessions_would_meet_the_border_is_refused():
    with pytest.raises(schema.ConfigError, match="a session of case video comes to 2060 tokens; shorten .*video"):
        load("+exp=generality", "target=none", "generality.cases.video.workload.duration_s=20")


def test_an_experiment_slows_the_codec_and_no_ear():
    """What a model hears per second is its own; only speech that is tokens can be made lighter."""
    runs = {name: load("+exp=smoke", f"model={name}") for name in ("smollm2", "qwen3_omni_30b")}
    assert {name: run.model.tokens_per_second for name, run in runs.items()} == {"smollm2": 12.5, "qwen3_omni_30b": 13}
