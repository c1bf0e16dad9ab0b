"""The HTTP server and its explorer page: one process, one model, bounded in memory and in time."""

from importlib.util import find_spec

from vitreous.errors import MissingDependencyError

for _package in ("fastapi", "uvicorn", "httptools", "prometheus_client", "python_multipart"):
    if find_spec(_package) is None:
        raise MissingDependencyError(
            f"vitreous serve needs the package {_package}: pip install 'vitreous[serve]'"
        )
