"""Moshi in full duplex on transformers: it hears and speaks in every frame, and its own bounded cache never pages.

What a position holds follows MoshiForConditionalGeneration.generate(), which is offline, and agrees with kyutai's own
LMGen. Position 0 holds only beginning-of-stream tokens. Position p > 0 holds the text token and the own semantic code
sampled at p - 1, the own acoustic codes sampled there (at p = 1 still beginning-of-stream), the user's semantic code of
frame p - 1 and the user's acoustic codes of frame p - 2: the acoustic delay. So frame k of the user is heard at
position k + 1, and with what is sampled there frame k of the own speech is complete. The first frame of a session costs
a position more.

As published: that order, the depth decoder's 8 codes per position with a cache of their own, rotary positions that grow
without end, and LMGen's sampling (text: temperature 0.7, top 25; audio: 0.8, top 250). Mimi streams on both sides:
transformers keeps only its transformer's state between calls of decode(), so the convolutions around it are driven
here. Not as published: LMGen runs all sessions as one lock-step batch over ring buffers allocated at its start, here
sessions take turns and a cache is concatenated anew for each position; weights and cache have the checkpoint's dtype;
a text token is handed out when it is sampled, where LMGen keeps it for the frame of speech it goes with; CUDA graphs,
the text tokenizer and the network server are left out. It runs on the CPU only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, MoshiForConditionalGeneration
from transformers.models.mimi.modeling_mimi import MimiConv1d, MimiConvTranspose1d, MimiResnetBlock

_TEXT_SAMPLING = (0.7, 25)  # temperature, top k
_AUDIO_SAMPLING = (0.8, 250)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """What the model answered to one Mimi frame."""

    text_token: int
    codes: tuple[int, ...]  # of its own speech in this frame, semantic code first
    speech: NDArray[np.float32]  # these codes as sound: as many samples as the frame that was heard
    num_kept: int  # positions in the temporal transformer's cache
    turn_done: bool = True


class Dialogue:
    """One session's state in the model. generator: where it draws its samples from; None: it takes the likeliest."""

    def __init__(self, model: Any, generator: torch.Generator | None) -> None:
        self._model, self._generator = model, generator
        config = model.config
        self._past = DynamicCache(config=model.decoder.config)
        self._padding: Any = None
        self._ear_past: Any = None
        self._mouth = _Mouth(model.audio_encoder)
        self._silence = torch.full((1, config.num_codebooks, 1), config.audio_vocab_size)  # beginning of stream
        self._text = torch.full((1, 1), config.vocab_size)
        self._own = self._silence
        self._delayed = self._silence[:, 1:]

    @property
    def num_kept(self) -> int:
        layer = self._past.layers[0]
        return int(layer.keys.shape[-2]) if layer.is_initialized else 0

    def converse(self, samples: NDArray[np.float32]) -> Spoken:
        with torch.inference_mode():
            text, codes = self.answer(self.hear(torch.from_numpy(samples)[None, None]))
            speech = self._mouth.say(codes)
        return Spoken(
            text_token=text,
            codes=tuple(codes.flatten().tolist()),
            speech=speech.flatten().float().numpy(),
            num_kept=self.num_kept,
        )

    def hear(self, samples: torch.Tensor) -> torch.Tensor:
        """The codes of the next frames of the user's audio; shapes (1, 1, samples) and (1, codebooks, frames)."""
        heard = self._model.audio_encoder.encode(
            samples.to(self._model.dtype),
            num_quantizers=self._model.config.num_codebooks,
            encoder_past_key_values=self._ear_past,
            padding_cache=self._padding,
            use_streaming=True,
            return_dict=True,
        )
        self._ear_past, self._padding = heard.encoder_past_key_values, heard.padding_cache
        codes: torch.Tensor = heard.audio_codes
        return codes

    def answer(self, codes: torch.Tensor) -> tuple[int, torch.Tensor]:
        """The text token and the own codes that answer one frame of the user's codes."""
        if not self._past.get_seq_length():
            self._advance(self._silence)
            self._own = torch.cat([self._own[:, :1], self._silence[:, 1:]], dim=1)
        user = torch.cat([codes[:, :1], self._delayed], dim=1)
        self._delayed = codes[:, 1:]
        semantic = self._own[:, :1]
        self._advance(user)
        return int(self._text), torch.cat([semantic, self._own[:, 1:]], dim=1)

    def _advance(self, user: torch.Tensor) -> None:
        """One position of the temporal transformer; samples its text token and its codes."""
        model = self._model
        embedded = model.decoder.model.embed_tokens(self._text)
        for level, embed in zip(torch.cat([self._own, user], dim=1).unbind(1), model.embed_tokens, strict=True):
            embedded = embedded + embed(level)
        out = model.decoder(inputs_embeds=embedded, past_key_values=self._past, use_cache=True, return_dict=True)
        self._text = self._pick(out.logits[:, -1], *_TEXT_SAMPLING)
        past = DynamicCache(config=model.depth_decoder.config)
        codes = [self._text]
        for _ in range(model.config.num_codebooks):
            depth = model.depth_decoder(
                input_ids=codes[-1],
                last_hidden_state=out.last_hidden_state[:, -1:],
                past_key_values=past,
                use_cache=True,
                return_dict=True,
            )
            codes.append(self._pick(depth.logits[:, -1], *_AUDIO_SAMPLING))
        self._own = torch.stack(codes[1:], dim=1)

    def _pick(self, logits: torch.Tensor, temperature: float, top_k: int) -> torch.Tensor:
        if self._generator is None:
            return logits.argmax(-1, keepdim=True)
        top, ids = logits.float().topk(min(top_k, logits.shape[-1]))
        drawn = torch.multinomial(torch.softmax(top / temperature, -1), 1, generator=self._generator)
        return ids.gather(-1, drawn)


class _Mouth:
    """Mimi's decoder, frame by frame, with the same sound as decoding all frames at once."""

    def __init__(self, mimi: Any) -> None:
        self._mimi = mimi
        self._past = DynamicCache(config=mimi.config)
        self._tails: dict[Any, torch.Tensor] = {}  # per convolution: the end of its input so far

    def say(self, codes: torch.Tensor) -> torch.Tensor:
        mimi = self._mimi
        hidden = self._run(mimi.upsample, mimi.quantizer.decode(codes))
        out = mimi.decoder_transformer(
            hidden.transpose(1, 2), past_key_values=self._past, use_cache=True, return_dict=True
        )
        hidden = out.last_hidden_state.transpose(1, 2)
        for layer in mimi.decoder.layers:
            hidden = self._run(layer, hidden)
        return hidden

    def _run(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        if isinstance(layer, MimiResnetBlock):
            inner = x
            for part in layer.block:
                inner = self._run(part, inner)
            return self._run(layer.shortcut, x) + inner
        if isinstance(layer, MimiConvTranspose1d):
            # Two strides wide (see _load): what the last input before adds is all that is missing of these outputs.
            later: torch.Tensor = layer(self._with_tail(layer, x, 1))
            return later[..., layer.conv.stride[0] :]
        if isinstance(layer, MimiConv1d):
            convolved: torch.Tensor = layer.conv(self._with_tail(layer, x, _reach(layer)))
            return convolved
        result: torch.Tensor = layer(x)
        return result

    def _with_tail(self, layer: Any, x: torch.Tensor, size: int) -> torch.Tensor:
        if not size:
            return x
        tail = self._tails.get(layer)
        joined = torch.cat([x.new_zeros(*x.shape[:-1], size) if tail is None else tail, x], dim=-1)
        self._tails[layer] = joined[..., -size:]
        return joined


def _reach(layer: Any) -> int:
    """Inputs before its own that a causal convolution sees."""
    conv = layer.conv
    return int((conv.kernel_size[0] - 1) * conv.dilation[0] + 1 - conv.stride[0])


def load(checkpoint: str) -> Any:
    """The model, ready to serve. Raises ValueError for a Mimi that cannot be streamed."""
    model = MoshiForConditionalGeneration.from_pretrained(checkpoint, local_files_only=True).eval()
    mimi = model.audio_encoder
    wide = [
        conv
        for conv in (m.conv for m in mimi.modules() if isinstance(m, MimiConvTranspose1d))
        if conv.kernel_size[0] != 2 * conv.stride[0]
    ]
    if (
        wide
        or not mimi.config.use_causal_conv
        or mimi.config.trim_right_ratio != 1
        or mimi.config.pad_mode != "constant"
    ):
        raise ValueError(
            f"{checkpoint}: its Mimi cannot be decoded frame by frame: that takes causal convolutions with constant "
            "padding, trimmed on the right, and transposed ones of twice their stride, as published"
        )
    return model
