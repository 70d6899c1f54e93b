"""Build and run images without a daemon, with Debian's buildah as root, in a separate directory.

Isolation is a chroot: file system, user and environment are the image's; network and processes are the
machine's, so services reach each other over loopback.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specinfer.cli.local.processes import Child

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
BASE = "localhost/specinfer-test-base"
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
PACKAGES = ("ca-certificates", "python3", "python3-venv")
NO_PERL = ("install usr-is-merged", "purge usrmerge ^perl-modules", "autoremove --purge")
"""Packages to remove: usrmerge is no longer needed and keeps 50 MB of Perl, which Python's official images lack."""
UNWANTED = ("man", "doc", "locale")
PAUSE_S = 0.1


def why_not() -> str | None:
    """Return the reason why no image can be built here, or None."""
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} (apt-get install buildah mmdebstrap)"
    if os.geteuid() != 0:
        return "only root builds images in a chroot"
    if not any(path.exists() for path in SOURCES):
        return "no apt sources of Debian"
    return None


def make_base(tarball: Path) -> None:
    """Write a small Debian with Python, of this machine's release and from its apt sources."""
    sources = next(path for path in SOURCES if path.exists())
    with Path("/etc/os-release").open() as file:
        release = dict(line.strip().split("=", 1) for line in file if "=" in line)["VERSION_CODENAME"]
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNWANTED]
    no_more = "--aptopt=Apt::Install-Recommends false"
    packages = f"--include={','.join(PACKAGES)}"
    hooks = [f'--customize-hook=chroot "$1" apt-get -qq -y {words}' for words in NO_PERL]
    part = tarball.with_suffix(".part.tar")
    part.parent.mkdir(parents=True, exist_ok=True)
    _run(
        [
            "mmdebstrap",
            "--variant=apt",
            no_more,
            packages,
            *excluded,
            *hooks,
            release,
            str(part),
            str(sources),
        ]
    )
    part.replace(tarball)


def pip_settings() -> list[Path]:
    """Return pip's settings files and the paths that they name; builds mount them at the same paths."""
    files = [Path("/etc/xdg/pip"), Path("/etc/pip.conf"), Path.home() / ".config" / "pip"]
    listed = _run(["pip", "config", "list"], check=False)
    words = listed.replace("'", " ").replace("file://", " ").split()
    named = [Path(word) for word in words if word[0] == "/"]
    # files of an index lie beside it, and an authority's file is a link to one beside it
    whole = [path.parent if path.name == "simple" or path.suffix == ".crt" else path for path in named]
    inside = {path for path in (*files, *whole) if path.exists()}
    return sorted(path for path in inside if not inside & set(path.parents))


class ImageStore:
    """The images and containers of buildah in one directory; `close` removes them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}

    def empty(self) -> None:
        """Remove containers."""
        self.buildah("rm", "--all")

    def close(self) -> None:
        """Remove containers and images."""
        self.empty()
        self.buildah("rmi", "--all", "--force")
        shutil.rmtree(self._directory, ignore_errors=True)

    def buildah(self, *arguments: str) -> str:
        """Run a buildah command; return its output."""
        return _run([*self._program, *arguments], environment=self._environment)

    def add_base(self, tarball: Path) -> None:
        """Create the base image of all targets, if it is missing."""
        if BASE in self.buildah("images", "--format", "{{.Name}}").split():
            return
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(tarball), "/")
        self.buildah("commit", "--quiet", container, BASE)
        self.buildah("rm", container)

    def build(self, target: str) -> str:
        """Build one target of the Dockerfile, with the cached layers of earlier builds; return the image's name."""
        image = f"localhost/specinfer-{target}"
        mounts = [f"--volume={path}:{path}:ro" for path in pip_settings()]
        known = ["--format=docker", "--layers", f"--build-arg=BASE={BASE}", "--build-arg=VERSION=test"]
        self.buildah(
            "bud", *known, *mounts, f"--file={DOCKERFILE}", f"--target={target}", f"--tag={image}", str(ROOT)
        )
        return image

    def configuration(self, image: str) -> dict[str, Any]:
        docker = json.loads(self.buildah("inspect", "--type", "image", image))["Docker"]
        return dict(docker["config"])

    def megabytes(self, image: str) -> float:
        """Return the uncompressed size of an image's layers, in 10^6 bytes."""
        manifest = json.loads(json.loads(self.buildah("inspect", "--type", "image", image))["Manifest"])
        return float(sum(layer["size"] for layer in manifest["layers"]) / 1e6)

    def container(self, image: str, directory: Path) -> "Container":
        """Create a container of an image, with its logs and its /tmp in `directory`."""
        return Container(self, image, self.buildah("from", image), directory)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of buildah commands."""
        return self._environment

    @property
    def _program(self) -> list[str]:
        # the driver as an option: with --root, buildah 1.28 does not look at STORAGE_DRIVER
        places = ["--root", str(self._directory / "root"), "--runroot", str(self._directory / "run")]
        return ["buildah", "--storage-driver", "vfs", *places]

    def run_command(self, *arguments: str) -> list[str]:
        """Return the command line of `buildah run`."""
        return [*self._program, "run", *arguments]


class Container:
    """A container of an image, run like by Docker, with its own /tmp and a model volume."""

    def __init__(self, store: ImageStore, image: str, name: str, directory: Path) -> None:
        self._store, self._name, self._directory = store, name, directory
        self._configuration = store.configuration(image)
        self._tmp = directory / "tmp"
        self._tmp.mkdir(parents=True)
        self._tmp.chmod(0o1777)
        self._before = self._files()
        self.child: Child | None = None

    def start(self, models: Path, environment: Mapping[str, str]) -> Child:
        """Start the image's entry point, which writes its process id to /tmp/pid."""
        script = 'echo $$ > /tmp/pid; exec "$@"'
        entry = ["sh", "-c", script, "sh", *self._configuration["Entrypoint"]]
        command = self._command(models, environment, entry)
        self.child = Child(self._name, command, self._directory / "log", self._store.environment)
        return self.child

    def run(self, models: Path, *arguments: str, check: bool = True) -> str:
        """Run a command in the container; return its output."""
        return _run(self._command(models, {}, arguments), environment=self._store.environment, check=check)

    def log(self) -> str:
        """Return the output so far."""
        return (self._directory / "log").read_text(errors="replace")

    def healthy(self, models: Path, timeout_s: float) -> bool:
        """Return whether the image's health check passes within `timeout_s`.

        Raises:
            UnavailableError: if the service ends.
        """
        kind, *command = self._configuration["Healthcheck"]["Test"]
        assert kind == "CMD"
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.child is not None
            self.child.check()
            line = self._command(models, {}, command)
            done = subprocess.run(line, env=dict(self._store.environment), capture_output=True, check=False)
            if done.returncode == 0:
                return True
            time.sleep(PAUSE_S)
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the container's process, like Docker; buildah forwards none."""
        os.kill(int((self._tmp / "pid").read_text()), number)

    def user(self) -> int:
        """Return the user id of the container's process."""
        pid = int((self._tmp / "pid").read_text())
        return Path(f"/proc/{pid}").stat().st_uid

    @property
    def files(self) -> list[Path]:
        return [Path(path) for path in self._before]

    def written(self) -> set[str]:
        """Return the files that were added or changed in the root file system, without volumes."""
        return {path for path, stamp in self._files().items() if self._before.get(path) != stamp}

    def _command(self, models: Path, environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
        mounts = [f"--volume={self._tmp}:/tmp:rw", f"--volume={models}:/models:ro"]
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        return self._store.run_command(*mounts, *variables, self._name, "--", *arguments)

    def _files(self) -> dict[str, tuple[int, int]]:
        root = self._store.buildah("mount", self._name)
        files: dict[str, tuple[int, int]] = {}
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                state = path.lstat()
                files[str(path.relative_to(root))] = (state.st_mtime_ns, state.st_size)
        return files


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None, check: bool = True) -> str:
    done = subprocess.run(
        command,
        env=None if environment is None else dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or not check, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()
