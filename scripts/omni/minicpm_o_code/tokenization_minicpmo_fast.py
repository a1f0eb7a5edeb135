"""Stand-in for MiniCPM-o's remote tokenizer: the markers that vLLM reads of it, as text and as ids."""

from transformers import PreTrainedTokenizerFast

MARKERS = {
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "im_id_start": "<image_id>",
    "im_id_end": "</image_id>",
    "audio_start": "<|audio_start|>",
    "audio_end": "<|audio_end|>",
    "spk_start": "<|spk_bos|>",
    "spk_end": "<|spk_eos|>",
}


class MiniCPMOTokenizerFast(PreTrainedTokenizerFast):
    pass


for _name, _marker in MARKERS.items():
    setattr(MiniCPMOTokenizerFast, _name, _marker)
    _id = property(lambda self, marker=_marker: self.convert_tokens_to_ids(marker))
    setattr(MiniCPMOTokenizerFast, f"{_name}_id", _id)
