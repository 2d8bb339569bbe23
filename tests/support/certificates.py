"""Certificates for servers and machines of the tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificates(folder: Path) -> Path:
    """A new folder with an authority that nobody knows, ``ca.pem``, and what it has signed for localhost.

    That is the certificate ``cert.pem``, whose key is ``key.pem``.

    Raises:
        FileNotFoundError: openssl is not installed.
    """
    folder.mkdir()
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key"]
    signed += ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=DNS:localhost"]
    for command in (
        [*new, "-subj", f"/CN={folder.name}", "-out", "ca.pem", "-keyout", "ca.key"],
        [*new, "-subj", "/CN=localhost", "-out", "cert.pem", "-keyout", "key.pem", *signed],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder
