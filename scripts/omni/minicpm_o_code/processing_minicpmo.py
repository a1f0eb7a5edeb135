"""Stand-in for MiniCPM-o's remote processor: holds the parts from which vLLM makes its own processor."""

from transformers.processing_utils import ProcessorMixin


class MiniCPMOProcessor(ProcessorMixin):
    attributes = ["image_processor", "feature_extractor", "tokenizer"]
    image_processor_class = "AutoImageProcessor"
    feature_extractor_class = "WhisperFeatureExtractor"
    tokenizer_class = "AutoTokenizer"

    def __init__(self, image_processor=None, feature_extractor=None, tokenizer=None, **kwargs):
        super().__init__(image_processor, feature_extractor, tokenizer)
