"""Which environment variables a child process may see (S3): paths and settings for computing, but no keys."""

from __future__ import annotations

from collections.abc import Mapping

from loopwright.core.redaction import names_a_secret

PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"}
    | {"VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
)
PASSED_ON_PREFIXES = (
    *("LC_", "XDG_", "PYTHON", "HF_", "TOKENIZERS_", "TORCH", "CUDA_", "NVIDIA_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "NUMEXPR_"),
    *("NCCL_", "GLOO_", "HIP_", "ROCR_"),
)


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of `env` that a child may see."""
    return {name: value for name, value in env.items() if _is_harmless(name)}


def _is_harmless(name: str) -> bool:
    return (name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)) and not names_a_secret(name)
