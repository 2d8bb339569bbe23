"""Folders of headers in installed Python packages, such as those of CUTLASS, which some packages bring along."""

from __future__ import annotations

from pathlib import Path

from ..core.dependencies import IN_PACKAGE, packaged_folder
from ..core.errors import DefinitionError, Where


def package_folder(name: str, where: Where, option: str = "includes") -> Path:
    """A folder in an installed package.

    Arguments:
        name: such as ``package:cutlass/include``.
        where: the place for error messages.
        option: where the definition has the name.

    Raises:
        DefinitionError: there is none.
    """
    folder = name.removeprefix(IN_PACKAGE)
    try:
        return packaged_folder(folder)
    except OSError as error:
        package = folder.partition("/")[0]
        remedy = (
            f"install the package that has {package}, or mend the name: folders of packages are looked for in sys.path"
        )
        message = f"{option} names {folder!r}, and no installed package has that folder"
        raise DefinitionError(message, where, remedy) from error
