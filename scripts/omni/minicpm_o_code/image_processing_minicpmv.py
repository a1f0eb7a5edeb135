"""Stand-in for MiniCPM-o's remote image processor: what vLLM asks of it at start; images are not served."""

from transformers import BaseImageProcessor


class MiniCPMVImageProcessor(BaseImageProcessor):
    model_input_names = ["pixel_values"]

    def __init__(
        self, max_slice_nums=9, scale_resolution=448, patch_size=14, image_feature_size=64, version=4.5, **kwargs
    ):
        super().__init__(**kwargs)
        self.max_slice_nums = max_slice_nums
        self.scale_resolution = scale_resolution
        self.patch_size = patch_size
        self.image_feature_size = image_feature_size
        self.version = version

    def get_sliced_grid(self, image_size, max_slice_nums=None, nerver_split=False):
        return None

    def get_slice_image_placeholder(self, image_size, image_idx=0, max_slice_nums=None, use_image_id=None):
        return "<image>" + "<unk>" * self.image_feature_size + "</image>"

    def preprocess(self, images, **kwargs):
        raise NotImplementedError("this stand-in takes no images: set limit_mm_per_prompt image=0")
