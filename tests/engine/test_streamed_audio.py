"""Real audio on the real engine: streamed equals plain, and a frame that cannot be heard hurts nobody else."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from command import ONE_PROCESS
from hydra import compose, initialize_config_dir
from vllm import SamplingParams
from vllm.engine.protocol import StreamingInput
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from experiments import schema
from metronome.audio import SAMPLE_RATE_HZ, find_clips, level, read
from metronome.backends.vllm_audio import Ear
from metronome.backends.vllm_engine import EngineOptions
from metronome.backends.vllm_stream import VllmStreamBackend
from metronome.models import STREAM_FIXES

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
MODELS = ("qwen2_5_omni", "qwen3_omni_30b", "minicpm_o_4_5")
NUM_FRAMES, TOKENS_OUT = 5, 4


def profile_of(name):
    with initialize_config_dir(str(ROOT / "experiments" / "conf"), version_base="1.3"):
        model = schema.load(compose("run", overrides=[f"model={name}", "target=none"])).model
    # All frames of a session as one plain request: so many audios at once.
    limits = {"image": 0, "video": 0, "audio": NUM_FRAMES}
    engine_args = model.engine_args | {"limit_mm_per_prompt": limits}
    return replace(model, dtype="float32", tokens_out=TOKENS_OUT, engine_args=engine_args)


@pytest.fixture(scope="module", params=MODELS)
async def backend(request, tmp_path_factory):
    options = EngineOptions(
        num_blocks=100,
        block_size=32,
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        log_file=tmp_path_factory.mktemp(request.param) / "engine.log",
    )
    backend = VllmStreamBackend(profile_of(request.param), options)
    with mock.patch.dict(os.environ, ONE_PROCESS):
        await backend.start()
    yield backend
    await backend.stop()


async def test_a_start_leaves_the_environment_as_it_was(backend):
    assert backend.engine.options.log_file.read_text()  # its processes did read what they were told there
    assert not {"VLLM_LOGGING_CONFIG_PATH", STREAM_FIXES} & os.environ.keys()


@pytest.fixture(scope="module")
def speech():
    """Five different seconds of real speech."""
    clips = [level(read(path)) for path in find_clips(ROOT / "data" / "speech")]
    return [clip[:SAMPLE_RATE_HZ] for clip in clips if len(clip) >= SAMPLE_RATE_HZ][:NUM_FRAMES]


def greedy():
    return SamplingParams(
        max_tokens=TOKENS_OUT,
        min_tokens=TOKENS_OUT,
        temperature=0,
        ignore_eos=True,
        logprobs=5,
        output_kind=RequestOutputKind.DELTA,
        detokenize=False,
    )


class Turns:
    """What came back: sampled ids, and the five best logprobs for each."""

    def __init__(self):
        self.ids, self.logprobs = [], []

    def take(self, output):
        self.ids += output.outputs[0].token_ids
        self.logprobs += output.outputs[0].logprobs or []

    def last(self):
        return self.ids[-TOKENS_OUT:], self.logprobs[-TOKENS_OUT:]


async def stream(backend, ear, frames):
    """Frame by frame, each sent when the one before is answered. (turns, input ids of each frame)"""
    turns, given = Turns(), []

    async def chunks():
        for k, samples in enumerate(frames):
            while len(turns.ids) < k * TOKENS_OUT:
                await asyncio.sleep(0.01)
            prompt, _ = await ear.hear(samples)
            given.append(list(prompt["prompt_token_ids"]))
            yield StreamingInput(prompt=prompt)

    async for output in backend.engine.llm.generate(chunks(), greedy(), "streamed"):
        turns.take(output)
    return turns, given


async def plain(backend, ear, said, frames, name):
    """The same session as one request: a turn's last token is not in the cache."""
    ids = []
    for k in range(len(frames)):
        ids += ear.placeholder_ids
        if k < len(frames) - 1:
            ids += said[k * TOKENS_OUT : (k + 1) * TOKENS_OUT - 1]
    prompt = TokensPrompt(prompt_token_ids=ids, multi_modal_data={"audio": list(frames)})
    turns = Turns()
    async for output in backend.engine.llm.generate(prompt, greedy(), name):
        turns.take(output)
    return turns


def distance(ours, theirs):
    """The largest difference of logprobs over tokens that both name; they must name some."""
    shared = [(a[t].logprob, b[t].logprob) for a, b in zip(ours, theirs, strict=True) for t in a if t in b]
    assert len(shared) >= 2 * TOKENS_OUT
    return max(abs(a - b) for a, b in shared)


async def test_a_streamed_session_equals_one_plain_request(backend, speech):
    ear = Ear(backend._profile, backend.engine.llm)
    streamed, _ = await stream(backend, ear, speech)
    ids, logprobs = streamed.last()
    same = await plain(backend, ear, streamed.ids, speech, "plain")
    assert same.last()[0] == ids
    found = distance(logprobs, same.last()[1])
    assert found <= 1e-4
    other = await plain(backend, ear, streamed.ids, speech[::-1], "reversed")
    moved = distance(logprobs, other.last()[1])
    print(f"{backend._profile.name}: streamed and plain differ by {found:.1e}, with the audio reversed by {moved:.1e}")
    assert moved > 1e-3


async def test_audio_tokens_per_second_are_the_profiles(backend, speech):
    profile, ear = backend._profile, Ear(backend._profile, backend.engine.llm)
    for seconds in (1, 2):
        samples = np.concatenate(speech[:seconds])
        _, num_in = await ear.hear(samples)
        assert num_in - profile.wrap_tokens(seconds * 1000) == seconds * profile.tokens_per_second


async def converse(backend, name, frames):
    """(tokens, positions of its input) of each turn."""

    async def turns():
        for frame in frames:
            yield frame
            await asyncio.sleep(0.2)

    answered, num_tokens = [], 0
    async for output in backend.converse(name, turns()):
        num_tokens += output.num_tokens
        if output.turn_done:
            answered.append((num_tokens, output.num_in))
            num_tokens = 0
    return answered


@pytest.mark.parametrize("fault", ["short", "nan", "stereo", "empty"])
async def test_a_frame_that_cannot_be_heard_ends_its_own_session_only(backend, speech, fault):
    profile = backend._profile
    least = profile.audio.min_frame_ms * SAMPLE_RATE_HZ // 1000
    bad = {
        "short": speech[0][: least - 160],
        "nan": np.full(SAMPLE_RATE_HZ, np.nan, np.float32),
        "stereo": np.zeros((2, SAMPLE_RATE_HZ), np.float32),
        "empty": np.zeros(0, np.float32),
    }[fault]
    good, broken = await asyncio.gather(
        converse(backend, f"good-{fault}", speech),
        converse(backend, f"bad-{fault}", [speech[0], bad]),
        return_exceptions=True,
    )
    assert (
        isinstance(broken, ValueError)
        and profile.name in str(broken)
        and ("send" in str(broken) or "convert" in str(broken))
    )
    assert [num_tokens for num_tokens, _ in good] == [TOKENS_OUT] * NUM_FRAMES
    assert await backend.drained(10)


async def test_the_shortest_frame_that_the_profile_allows_is_heard(backend, speech):
    least = backend._profile.audio.min_frame_ms * SAMPLE_RATE_HZ // 1000
    turns = await converse(backend, "least", [clip[:least] for clip in speech])
    assert [num_tokens for num_tokens, _ in turns] == [TOKENS_OUT] * NUM_FRAMES
    assert min(num_in for _, num_in in turns) > backend._profile.audio.wrap_tokens
