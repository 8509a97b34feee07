"""What is installed: the extras of this package, the purpose of each, and the versions of its packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from loopwright.doctor.facts import InstalledExtra

EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("training and the embedded engine", ("torch", "transformers", "safetensors", "jinja2", "llguidance")),
    "smollm2": ("converting the bundled model smollm2", ("gguf", "accelerate")),
    "math": ("the judger math_answer", ("math-verify",)),
    "http": ("the judgers http and llm", ("httpx",)),
    "parquet": ("tasks from Parquet files", ("pyarrow",)),
    "datasets": ("tasks from Hugging Face datasets folders", ("datasets",)),
    "reasoning-gym": ("generated tasks of reasoning_gym", ("reasoning-gym",)),
    "serve": (
        "engines in processes of their own, and the gateway",
        ("starlette", "uvicorn", "httptools", "websockets", "uvloop", "httpx", "zstandard"),
    ),
    "ui": ("the web page of runs", ("starlette", "uvicorn", "httptools", "pyarrow", "tokenizers")),
    "tensorboard": ("metrics in TensorBoard", ("tensorboard",)),
    "wandb": ("metrics at Weights & Biases", ("wandb",)),
    "mlflow": ("metrics at MLflow", ("mlflow-skinny", "sqlalchemy", "alembic")),
    "renderers": ("tools and thoughts of known model families", ("renderers", "prime-pydantic-config")),
    "mcp": ("tools of MCP servers", ("mcp",)),
    "lora": ("training adapters (learner.lora)", ("peft",)),
    "ray": ("parts of a run on actors of a cluster", ("ray",)),
}
"""The extras that a user may want, each with its purpose and its packages."""


def installed(package: str) -> str | None:
    """The version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras() -> tuple[InstalledExtra, ...]:
    return tuple(
        InstalledExtra(name, purpose, {package: installed(package) for package in packages})
        for name, (purpose, packages) in EXTRAS.items()
    )
