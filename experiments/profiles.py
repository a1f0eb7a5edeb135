"""Which weights a model is loaded with: the real ones on a GPU, tiny random ones on a CPU, unless it is said."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any


def has_gpu() -> bool:
    """Whether this machine shows a CUDA GPU; torch, which knows, takes seconds to import."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def settle(values: MutableMapping[str, Any]) -> None:
    """Fill in what each model in a configuration leaves to its weights: `by_weights` holds values for either kind.

    Raises ValueError for other kinds.
    """
    for model in _models(values):
        choices = model.pop("by_weights", None)
        if not choices:
            continue
        model["weights"] = model["weights"] or ("real" if has_gpu() else "tiny")
        if model["weights"] not in choices:
            raise ValueError(f"model.weights={model['weights']!r}: must be one of {', '.join(choices)}")
        for key, value in choices[model["weights"]].items():
            if model.get(key) is None:
                model[key] = value


def _models(values: MutableMapping[str, Any]) -> list[MutableMapping[str, Any]]:
    cases = (values.get("generality") or {}).get("cases", {}).values()
    return [part["model"] for part in (values, *cases) if isinstance(part.get("model"), dict)]
