"""Whether a model's files are all there, before an engine is started for them."""

import os
from collections.abc import Iterable
from pathlib import Path

from metronome.models import ModelProfile

_ALL = ("config.json", "tokenizer.json|tokenizer.model|vocab.json", "*.safetensors|*.bin")
_HEARS = ("preprocessor_config.json",)


def check(model: ModelProfile) -> None:
    """Raises ValueError that names the model, what is missing and the fix."""
    if model.checkpoint.startswith((".", "/")):  # else a hub id
        _check_files(model, Path(model.checkpoint), fix="build it: make setup")
    else:
        _check_hub(model)


def _check_files(model: ModelProfile, folder: Path, fix: str) -> None:
    missing = [name for name in _needed(model) if not _there(folder, name)]
    if len(missing) == len(_needed(model)):
        raise ValueError(f"model.checkpoint={model.checkpoint}: no checkpoint of {model.name} there; {fix}")
    if missing:
        again = f"remove {folder} and " if folder == Path(model.checkpoint) else ""
        raise ValueError(
            f"model.checkpoint={model.checkpoint}: {model.name} lacks {', '.join(missing).replace('|', ' or ')}; "
            f"{again}{fix}"
        )


def _needed(model: ModelProfile) -> tuple[str, ...]:
    if model.backend != "vllm":
        return ("config.json", "*.safetensors|*.bin")
    return _ALL + (_HEARS if model.audio else ())


def _there(folder: Path, names: str) -> bool:
    return any(_any(folder.glob(name)) for name in names.split("|"))


def _any(paths: Iterable[Path]) -> bool:
    """An empty file is what a copy that was cut short left."""
    return any(path.stat().st_size for path in paths)


def _check_hub(model: ModelProfile) -> None:
    """A hub id must be in the local cache: runs do not wait for a network, unless HF_HUB_OFFLINE=0 says so."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    revision = f" --revision {model.revision}" if model.revision else ""
    fix = f"fetch it (hf download {model.checkpoint}{revision}), or set model.weights=tiny"
    offline = os.environ.get("HF_HUB_OFFLINE", "1") != "0"
    try:
        found = snapshot_download(
            model.checkpoint, revision=model.revision, local_files_only=offline, allow_patterns=["*.json"]
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        why = "is not in the hub's local cache" if offline else f"cannot be reached ({type(error).__name__})"
        raise ValueError(f"model.checkpoint={model.checkpoint}: {model.name} {why}; {fix}") from error
    if offline:
        _check_files(model, Path(found), fix)
