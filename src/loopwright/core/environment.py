"""Which environment variables a child process may see (S3): paths and settings for computing, but no keys. Processes of
ours that compute see more settings of torch and its libraries than the programs of agents."""

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
OF_COMPUTING = ("PYTORCH_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "TRITON_", "HSA_", "MIOPEN_")
"""Settings of torch, and of the libraries that it computes with on a GPU."""


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of `env` that a child may see."""
    return _harmless(env, PASSED_ON_PREFIXES)


def computing_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of `env` that a process of ours may see that computes: an engine, a rank, an actor."""
    return _harmless(env, PASSED_ON_PREFIXES + OF_COMPUTING)


def _harmless(env: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if (name in PASSED_ON or name.startswith(prefixes)) and not names_a_secret(name)
    }
