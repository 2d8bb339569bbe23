"""Finds the device code of a package whose archs have a wheel each.

Nothing here runs before a kernel's first CUDA call, because a search through the installed distributions takes tens of
milliseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROUP = "kernelwright.device_code"
"""The group of the entry points by which wheels of device code are found. Each has the name of its package."""


class MisfitError(Exception):
    """Device code that is missing or damaged, or belongs to something else."""


class Provider:
    """Finds the device code of one kernel.

    Arguments:
        folder: the package's folder.
        manifest: the content of its manifest.json.
        kernel: the kernel's name.
        read_manifest, read_file: functions of the loader, passed because it imports this module: the first reads and
            verifies the manifest of another package, the second reads a regular file.
        remedy: what to do about device code that is damaged in the package itself.
    """

    def __init__(
        self,
        folder: Path,
        manifest: dict[str, Any],
        kernel: str,
        read_manifest: Callable[[Path], dict[str, Any]],
        read_file: Callable[[Path], bytes],
        remedy: str,
    ) -> None:
        self._own_remedy = remedy
        self._folder = folder
        self._path = folder / "manifest.json"
        self._place = manifest["device_code"]
        self._files = manifest["files"] if "label" in self._place else None
        self._package = manifest.get("package")
        self._schema = manifest.get("schema")
        self._read_manifest = read_manifest
        self._read_file = read_file
        self._variants = {variant["slug"]: variant for variant in manifest["kernels"][kernel]["variants"]}

    def find(self, variant: str, archs: str, device: int, capability: int) -> str:
        """The best of the images that are installed, verified. The kernel's library calls this, see its ``provider.h``.

        Arguments:
            variant: the slug of the variant.
            archs: the archs that suit the device, best first, with blanks between them.
            device: number of the device.
            capability: its compute capability, 10 * major + minor.

        Returns:
            The arch, a blank, and the path of its image; or a blank, and what is wrong.
        """
        try:
            return self._find(variant, archs.split(), device, capability)
        except MisfitError as error:
            return f" {error}"
        except (AttributeError, KeyError, StopIteration, TypeError):
            return f" {self._path}: does not list its device code in the form of schema {self._schema}"

    def _find(self, variant: str, archs: list[str], device: int, capability: int) -> str:
        for arch in archs:
            listed = self._listed(variant, arch)
            folder = self._folder_of(arch, listed)
            if folder is not None:
                return f"{arch} {self._verified(folder, listed, arch)}"
        raise MisfitError(
            f"cuda:{device} is an sm_{capability}, and the device code for it is not installed: {' or '.join(archs)} "
            f"(installed: {', '.join(self._installed_archs()) or 'none'})\n  remedy: {self._pip(archs[0])}"
        )

    def _installed_archs(self) -> list[str]:
        if self._files is not None:
            units = [unit for variant in self._variants.values() for unit in variant["units"]]
            images = [image for unit in units for image in unit.get("images", {}).items()]
            return list(dict.fromkeys(arch for arch, listed in images if self._is_here(listed)))
        packages = self._place["packages"]
        return [arch for arch in packages if self._installed(packages[arch]) is not None]

    def _is_here(self, listed: dict[str, Any]) -> bool:
        """Whether an image is in this wheel; a wheel variant has those for some devices only."""
        return self._files is None or f"{self._place['folder']}/{listed['file']}" in self._files

    def _folder_of(self, arch: str, listed: dict[str, Any]) -> Path | None:
        """The folder with the device code of an arch; None: it is not installed."""
        if not self._is_here(listed):
            return None
        if "folder" in self._place:
            return Path(self._folder, self._place["folder"]).resolve()
        folder = self._installed(self._place["packages"][arch])
        if folder is not None:
            self._require_fit(folder, arch, listed)
        return folder

    def _installed(self, package: str) -> Path | None:
        """The folder of a package of device code: beside this one or, by its entry point, anywhere on Python's path."""
        beside = self._folder.parent / package.rpartition(".")[2]
        if (beside / "manifest.json").is_file():
            return beside
        # Imported here, because few packages have their device code elsewhere.
        from importlib.metadata import entry_points

        for point in entry_points(group=GROUP, name=package):
            if point.dist is not None:
                return Path(str(point.dist.locate_file(point.value.replace(".", "/"))))
        return None

    def _require_fit(self, folder: Path, arch: str, listed: dict[str, Any]) -> None:
        """Raise a MisfitError if a wheel of device code is damaged, or was not built together with this package.

        Arguments:
            folder: of the wheel's package.
            arch: what it should be for.
            listed: name and digest of an image that it should have.
        """
        try:
            manifest = self._read_manifest(folder / "manifest.json")
        except ImportError as error:
            raise MisfitError(f"{error}{self._remedy(arch)}") from None
        if manifest.get("package") != self._package or manifest.get("arch") != arch:
            message = f"{folder} is not the device code of {self._package} for {arch}"
            raise MisfitError(message + self._remedy(arch))
        if manifest.get("version") != self._place["version"]:
            wheel, version = self._place["wheels"][arch], self._place["version"]
            raise MisfitError(
                f"{wheel} is installed in version {manifest.get('version')}, and {self._place['name']} in {version}\n"
                f"  remedy: {self._pip(arch)}"
            )
        # It is another build of the same version: to install that wheel again would not help.
        if manifest["files"].get(listed["file"], {}).get("sha256") != listed["sha256"]:
            name, version, wheel = self._place["name"], self._place["version"], self._place["wheels"][arch]
            pip = f"pip install --force-reinstall --no-deps '{name}=={version}' '{wheel}=={version}'"
            raise MisfitError(
                f"{folder} belongs to another build of {name} {version}, in which {listed['file']} is not the same\n"
                f"  remedy: install both from one build, such as with {pip}"
            )

    def _listed(self, variant: str, arch: str) -> dict[str, Any]:
        """Name and digest of an image, as the manifest of this package has them."""
        units = self._variants[variant]["units"]
        listed: dict[str, Any] = next(unit["images"][arch] for unit in units if arch in unit.get("images", {}))
        # As for libraries, a manifest must not name files outside of its package.
        if listed["file"].startswith("/") or ".." in listed["file"].split("/"):
            raise MisfitError(f"the manifest lists {listed['file']!r}, which is no file of the package")
        return listed

    def _verified(self, folder: Path, listed: dict[str, Any], arch: str) -> Path:
        """The path of an image, after its content is compared with the manifest's digest."""
        path: Path = folder / listed["file"]
        try:
            content = self._read_file(path)
        except OSError as error:
            raise MisfitError(f"{path}: cannot be read ({error.strerror}){self._remedy(arch)}") from None
        if hashlib.sha256(content).hexdigest() != listed["sha256"]:
            message = "was altered, or belongs to another build: its content is not what manifest.json lists"
            raise MisfitError(f"{path}: {message}{self._remedy(arch)}")
        return path

    def _remedy(self, arch: str) -> str:
        if not self._place["packages"]:
            return f"\n  remedy: {self._own_remedy}"
        again = "scons" if "folder" in self._place else self._pip(arch, again=True)
        return f"\n  remedy: {again}"

    def _pip(self, arch: str, again: bool = False) -> str:
        if self._files is not None:
            label, wheel = self._place["label"], f"'{self._place['name']}=={self._place['version']}'"
            return (
                f"this is the wheel variant {label}, for other machines. Install the wheel with all code, "
                f"pip install --force-reinstall --no-deps {wheel}, or the variant for this machine, uv pip install "
                f"--preview-features wheel-variants --reinstall {wheel}"
            )
        options = "--force-reinstall --no-deps " if again else ""
        return f"pip install {options}'{self._place['wheels'][arch]}=={self._place['version']}'"
