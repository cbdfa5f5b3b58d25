"""Environments of scripts' own, for packages that rlref's may not have."""

import shutil
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_with(name: str, *packages: str, seconds: float) -> Path:
    """The Python of `.venv-NAME` with these packages, as pip is told in the project's folder; made on first use.

    Raises CalledProcessError or TimeoutExpired if they cannot be installed in so many seconds, and leaves none behind.
    """
    folder = ROOT / f".venv-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder.name}", flush=True)
        venv.create(folder, with_pip=True)
        try:
            command = [str(python), "-m", "pip", "install", "-q", *packages]
            subprocess.run(command, check=True, timeout=seconds, cwd=ROOT)
        except BaseException:
            shutil.rmtree(folder)
            raise
    return python
